# Targets around the container image; included by the top-level Makefile.

# Which flavor: cpu or cuda.
FLAVOR ?= cpu
# The tag; empty means fabric-train:$(FLAVOR).
IMAGE ?=
# What to build upon, best by digest; empty means the flavor's default (images/Dockerfile).
BASE_IMAGE ?=
# A folder of wheels for building without an index; empty means wheelhouse or wheelhouse-cuda.
WHEELHOUSE ?=
PYTHON ?= python3

image-variables = FLAVOR='$(FLAVOR)' IMAGE='$(IMAGE)' BASE_IMAGE='$(BASE_IMAGE)' \
	WHEELHOUSE='$(WHEELHOUSE)'

.PHONY: image push wheelhouse

image: ## Build the image (FLAVOR=cpu|cuda BASE_IMAGE=... IMAGE=...)
	@$(image-variables) $(PYTHON) images/build

push: ## Tag the image and push it (IMAGE=registry.example/me/fabric-train:1 FLAVOR=cpu|cuda)
	@$(image-variables) $(PYTHON) images/build --push

wheelhouse: ## Download the wheels that the image is built from (FLAVOR=cpu|cuda)
	@$(image-variables) $(PYTHON) images/wheelhouse
