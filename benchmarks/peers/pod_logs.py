"""The shortest program that follows many pods with the official client: a thread for each.

    pod_logs.py NAMESPACE LABEL_SELECTOR

It loses what comes after a broken connection or a restart, and sees no pod that comes later.
"""

import sys
import threading

from kubernetes import client, config


def follow(api: client.CoreV1Api, namespace: str, pod: str) -> None:
    log = api.read_namespaced_pod_log(pod, namespace, follow=True, _preload_content=False)
    rest = b""
    for chunk in log.stream(2**16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            sys.stdout.write(f"{pod} {line.decode()}\n")


def main(namespace: str, selector: str) -> None:
    config.load_kube_config()
    api = client.CoreV1Api()
    pods = api.list_namespaced_pod(namespace, label_selector=selector).items
    threads = [
        threading.Thread(target=follow, args=(api, namespace, pod.metadata.name)) for pod in pods
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
