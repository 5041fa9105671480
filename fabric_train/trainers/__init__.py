"""What the callbacks for Lightning's, Hugging Face's and other Trainers have in common."""
