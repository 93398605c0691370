"""Pictures of images: under each kind of shift, and those that tell two models apart."""
