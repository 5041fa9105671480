# The first process of a test host: mounts of its own, a name, an sshd. Not run by hand.
set -e
folder=$1
name=$2
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/root,upperdir=$folder/home,workdir=$folder/work" /root
mount --bind "$folder/etc/hosts" /etc/hosts
# Nothing listens there: a name that is not in /etc/hosts is refused at once.
echo "nameserver 127.0.0.1" >"$folder/etc/resolv.conf"
mount --bind "$folder/etc/resolv.conf" /etc/resolv.conf
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir -p /run/sshd
hostname "$name"
/usr/sbin/sshd -f "$folder/etc/sshd_config" -E "$folder/etc/sshd.log"
[ ! -x "$folder/etc/start" ] || "$folder/etc/start"
# As the parent of what loses its own, bash reaps it.
sleep infinity &
while :; do wait; done
