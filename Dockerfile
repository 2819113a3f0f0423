# The demo in a container, on a CPU: docker build -t ltr . && docker run --rm -v ltr-runs:/ltr/runs ltr
FROM python:3.11-slim

RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1

# A user of its own. What is trained stays in a volume, which gets the owner of the folder here.
RUN useradd --create-home ltr && mkdir -p /ltr/runs && chown -R ltr:ltr /ltr
USER ltr
WORKDIR /ltr

# torch first and alone, and of the index for CPUs: the one of PyPI brings gigabytes for GPUs. A layer of its own, so that
# another line of code does not install it again.
COPY --chown=ltr:ltr constraints.txt ./
RUN python3 -m venv .venv && .venv/bin/pip install --index-url https://download.pytorch.org/whl/cpu $(grep '^torch==' constraints.txt)

COPY --chown=ltr:ltr . .
RUN make env
VOLUME /ltr/runs
CMD ["make", "demo"]
