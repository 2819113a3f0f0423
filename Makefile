# The two commands of a new user are `make demo` and `make test`; `make help` lists the others.
PYTHON ?= python3
DATA ?= ../shared/data
BIN := .venv/bin
export HF_HUB_DISABLE_TELEMETRY := 1
# Bytecode is kept, whatever the environment says: or each process of the tests compiles all of them, which takes 10 s.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help env demo dist data test test-gpu test-long test-newest test-oldest mutations lint docs site bench bench-gpu quality tables reproduce clean FORCE
.DELETE_ON_ERROR:

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z\/%-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: .venv/ready  ## Create .venv with everything installed

# torch first and alone: pip then takes the build that is at hand, instead of one that another package names.
.venv/ready: setup.cfg constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install -q -c constraints.txt -e '.[check,cpu,data,demo,dev,lora,onnx,parquet,site,stemming,zstd]'
	touch $@

demo: env  ## Train on the data that ships, and compare with BM25 and a dual encoder (some minutes)
	HF_HUB_OFFLINE=1 $(BIN)/ltr demo

# One thread per process, and one process more than cores, as some tests wait for others. Timings of the tests say nothing anyway.
# A process that was ended, as one whose test hangs is, is not replaced: the next one would begin with that test again.
WORKERS = $(shell $(PYTHON) -c 'import os; print(1 + os.cpu_count())')
# The long tests wait more.
LONG_WORKERS = $(shell $(PYTHON) -c 'import os; print(2 + os.cpu_count())')
test: env  ## Run the tests (J=1: one after the other)
	HF_HUB_OFFLINE=1 WANDB_MODE=offline OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(or $(J),$(WORKERS)) --dist loadfile --max-worker-restart 0

test-long: env  ## Run the tests that make test leaves out
	HF_HUB_OFFLINE=1 WANDB_MODE=offline OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m long -n $(or $(J),$(LONG_WORKERS)) --max-worker-restart 0

# One after the other: they share the GPU. T: some of them.
test-gpu: env  ## Run the tests that need a GPU (LTR_GPU_TESTS_ON=cpu tries them without one)
	HF_HUB_OFFLINE=1 WANDB_MODE=offline OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m gpu $(T)

# What others install: the newest versions that the packages allow, and the oldest that setup.cfg names. torch alone is
# that of constraints.txt. T: tests, where not all are run.
test-newest:  ## Run the tests with the newest versions of all packages
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/pip install -q $$(grep '^torch==' constraints.txt)
	.venv-newest/bin/pip install -q -e '.[check,cpu,data,demo,dev,lora,onnx,parquet,stemming,zstd]'
	HF_HUB_OFFLINE=1 WANDB_MODE=offline OMP_NUM_THREADS=1 .venv-newest/bin/python -m pytest -n $(or $(J),$(WORKERS)) --dist loadfile --max-worker-restart 0 $(T)

test-oldest:  ## Run the tests with the oldest versions that setup.cfg allows
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install -q $$(grep '^torch==' constraints.txt)
	sed -nE 's/^ +([A-Za-z0-9_-]+)(\[.*\])? >= ([0-9.]+)(,.*)?$$/\1==\3/p' setup.cfg | grep -v '^torch==' > .venv-oldest/oldest.txt
	.venv-oldest/bin/pip install -q -c .venv-oldest/oldest.txt -e '.[check,cpu,data,demo,dev,lora,onnx,parquet,stemming,zstd]'
	HF_HUB_OFFLINE=1 WANDB_MODE=offline OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -n $(or $(J),$(WORKERS)) --dist loadfile --max-worker-restart 0 $(T)

mutations: env  ## Plant faults in a copy of the losses: would the tests notice? (J=2: two at a time)
	$(BIN)/python tests/mutations.py -j $(or $(J),1)

lint: env  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/python tests/density.py

docs: env  ## Rebuild docs/losses.md, its figures, and the outputs of the notebooks
	OMP_NUM_THREADS=1 $(BIN)/python docs/build_losses.py
	OMP_NUM_THREADS=1 $(BIN)/python notebooks/run.py

site: env  ## Build the site of the documentation, in build/site
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/site

# twine in the environment of the build alone: it brings many packages.
dist: env  ## Build the wheel into dist/, and check it as the index does
	rm -rf build/lib build/bdist.* dist
	$(BIN)/python -m build
	$(PYTHON) -m venv .venv/dist
	.venv/dist/bin/pip install -q twine 'readme-renderer[md]'
	.venv/dist/bin/twine check --strict dist/*

data:  ## Link the development data sets as data/ (DATA=folder)
	@test -d $(DATA) || { echo "make data: there is no folder $(DATA); say DATA=folder"; exit 2; }
	ln -sfn $(DATA) data

# The peers of the benchmarks. They move some of the versions that constraints.txt names, so not with it, but for torch.
.venv/bench: .venv/ready
	$(BIN)/pip install -q $$(grep '^torch==' constraints.txt) -e '.[bench]'
	touch $@

bench: .venv/bench data  ## Measure speed, memory and padding (benchmarks/)
	$(BIN)/python benchmarks/tokens.py
	$(BIN)/python benchmarks/padding.py
	$(BIN)/python benchmarks/collate.py
	$(BIN)/python benchmarks/launches.py
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/train_cross.py
	$(BIN)/python benchmarks/train_dual.py --keep-tokens 8192
	$(BIN)/python benchmarks/train_dual.py --cached --batch 1024 --max-length 64 --warm-up 1 --steps 1 --turns 2
	$(BIN)/python benchmarks/big_batch.py
	$(BIN)/python benchmarks/encode.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/mining.py
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/ranknet_factorised.py
	$(BIN)/python benchmarks/letor_reader.py
	$(BIN)/python benchmarks/import_forms.py

bench-gpu: .venv/bench  ## Measure on one GPU, in nine minutes (TINY=1: try it on a CPU)
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/gpu.py $(if $(TINY),--tiny)

# Within three hours on 2 cores: by fewer training pairs and shorter texts, not by fewer seeds.
quality: .venv/bench data | runs/data/wordnet-4000  ## Dual encoders beside sentence-transformers' trainer (docs/dual_encoders.md, docs/results.md)
	$(BIN)/python benchmarks/quality_dual.py --data data/wikiqa --candidates candidates --max-length 64 --seeds 0 --exact
	$(BIN)/python benchmarks/quality_dual.py --data data/wikiqa --candidates candidates corpus --max-length 64
	$(BIN)/python benchmarks/quality_dual.py --data examples/medquad --examples 480 --max-length 64
	$(BIN)/python benchmarks/quality_dual.py --data data/medquad-liveqa --examples 480 --max-length 24
	$(BIN)/python benchmarks/quality_dual.py --data data/wikiqa --candidates candidates --max-length 64 --losses batch-hard --seeds 3 4 5 6 7 8 9 10
	$(BIN)/python benchmarks/quality_dual.py --data examples/medquad --examples 480 --max-length 64 --losses "in-batch softmax" --seeds 0 --exact
	$(BIN)/python benchmarks/quality_mined.py

# What tables are made of. A folder that is there stays; of a training that was interrupted the rest is done.
runs/data/medquad-400: | env
	$(BIN)/python experiments/subset.py examples/medquad $@ --queries 400
runs/data/medquad-negatives: | runs/data/medquad-400
	$(BIN)/ltr mine --config experiments/mined/medquad.yaml --data.path runs/data/medquad-400 --recipe.n 20 --output $@
runs/data/liveqa-600: | env data
	$(BIN)/python experiments/subset.py data/medquad-liveqa $@ --queries 600
runs/data/wikiqa-negatives: | env data
	$(BIN)/python experiments/pool_negatives.py data/wikiqa $@
runs/data/wordnet-4000: | env data
	$(BIN)/python experiments/subset.py data/wordnet-definitions $@ --queries 4000
runs/data/wordnet-1000: | env data
	$(BIN)/python experiments/subset.py data/wordnet-definitions $@ --queries 400 --evaluated 10 --documents 1000
runs/data/wordnet-2000: | env data
	$(BIN)/python experiments/subset.py data/wordnet-definitions $@ --queries 2000 --evaluated 10 --documents 20000
runs/data/wordnet-10000: | env data
	$(BIN)/python experiments/subset.py data/wordnet-definitions $@ --queries 4000 --documents 10000
runs/data/wordnet-40000: | env data
	$(BIN)/python experiments/subset.py data/wordnet-definitions $@ --queries 4000 --documents 40000
runs/data/wordnet-two-stages: | runs/data/wordnet-4000
	$(BIN)/ltr grid experiments/grids/heart.yaml --only "in-batch 32" --seeds 0
	$(BIN)/ltr mine --config experiments/mined/wordnet.yaml --init_from "runs/heart/in-batch 32/seed=0" --output $@
runs/data/wordnet-pools: | runs/data/wordnet-4000
	$(BIN)/ltr grid experiments/grids/heart.yaml --only refreshed --seeds 0
	$(BIN)/python experiments/pools_of_run.py runs/heart/refreshed/seed=0 runs/data/wordnet-4000 $@ --depth 50
runs/data/wordnet-two-stages.drop-1: | runs/data/wordnet-two-stages runs/data/wordnet-pools
	$(BIN)/ltr grid experiments/grids/heart_rerank.yaml --only "dual encoder" --seeds 0
	$(BIN)/ltr negatives audit runs/data/wordnet-two-stages --data runs/data/wordnet-4000 --judge "runs/heart_rerank/dual encoder/seed=0" --policy drop
	test -d $@
runs/health: FORCE | env data
	$(BIN)/ltr fit --config experiments/cross_encoder/health.yaml --trainer.default_root_dir $@/seed=0 --ckpt_path last
runs/teachers: FORCE | runs/health
	$(BIN)/ltr grid experiments/grids/wikiqa_best.yaml --only "health questions" "as published" --seeds 0 1 2
runs/scores/wikiqa: | runs/teachers
	$(BIN)/ltr score "runs/wikiqa_best/health questions/as published/seed=0" --data data/wikiqa --output $@
runs/scores/wikiqa-3: | runs/teachers
	$(BIN)/ltr score "runs/wikiqa_best/health questions/as published/"seed=[012] --data data/wikiqa --output $@
runs/scores/liveqa: | runs/health runs/data/liveqa-600
	$(BIN)/ltr score runs/health/seed=0 --data runs/data/liveqa-600 --documents bm25 --depth 20 --output $@
FORCE:

# The tables: make results/heart trains what is missing for one of them, and writes it to runs/heart.md.
SHIPPED := cross_encoder ladder
TABLES := $(SHIPPED) dual_encoder transform margins schedule losses-medquad wikiqa wikiqa_best wikiqa_dual wikiqa_folds \
  wikiqa_folds-5-folds losses distil distil_cross distil_corpus windows rerank_mined ladder-wikiqa ladder-liveqa ladder-cmedir \
  heart heart_double heart_long heart_size heart_rerank calibration-wikiqa calibration-medquad calibration-wordnet
OTHERS := clean_splits mixture audit significance calibration calibration_losses machine_labels wikiqa_judge until_shown synthetic lambdarank mq2008

results/%: | env  ## One table of docs/results.md (make tables lists them)
	$(BIN)/python experiments/reproduce.py $* $(if $(QUICK),--quick)
results/ladder results/margins results/schedule: | runs/data/medquad-400
results/losses-medquad: | runs/data/medquad-400 runs/data/medquad-negatives
results/calibration-wikiqa results/wikiqa results/wikiqa_dual results/rerank_mined results/ladder-wikiqa results/ladder-cmedir results/windows: | data
results/heart_long: | data
results/calibration-wordnet: | runs/data/wordnet-2000
results/losses: | runs/data/wikiqa-negatives
results/wikiqa_best results/wikiqa_folds results/wikiqa_folds-5-folds: | runs/health
results/distil: | runs/scores/wikiqa
results/distil_cross: | runs/scores/wikiqa-3
results/distil_corpus: | runs/scores/liveqa
results/ladder-liveqa: | runs/data/liveqa-600
results/heart: | runs/data/wordnet-two-stages runs/data/wordnet-two-stages.drop-1
results/heart_double: | runs/data/wordnet-4000
results/heart_size: | runs/data/wordnet-1000 runs/data/wordnet-10000 runs/data/wordnet-40000
results/heart_rerank: | runs/data/wordnet-pools runs/data/wordnet-two-stages
results/clean_splits: | results/cross_encoder results/ladder results/wikiqa_best
	$(BIN)/python experiments/clean_splits.py
results/mixture: | env data
	$(BIN)/python experiments/mixture.py
results/audit: | env data
	$(BIN)/python experiments/audit.py data/medquad-liveqa runs/audit --trainer.max_epochs 1 --trainer.limit_val_batches 0
results/significance: | env
	$(BIN)/python experiments/significance.py
results/calibration: | env data
	$(BIN)/python -m ltr fit --config recipe:lambdarank --data.path data/mq2008 --data.fold 1 --trainer.max_epochs 5 \
	  --trainer.default_root_dir runs/calibration/mq2008 --ckpt_path last
	$(BIN)/python experiments/calibration.py data/wikiqa examples/medquad data/wordnet-definitions --run runs/calibration/mq2008
results/calibration_losses: | results/calibration-wikiqa results/calibration-medquad results/calibration-wordnet
	$(BIN)/python experiments/calibration_losses.py runs/calibration-wikiqa runs/calibration-medquad runs/calibration-wordnet
results/machine_labels: | env
	$(BIN)/python experiments/machine_labels.py
results/wikiqa_judge: | env data
	$(BIN)/python experiments/wikiqa_judge.py data/wikiqa runs/judge
	$(BIN)/python -m ltr fit --config recipe:cross_encoder --data.path data/wikiqa --model.ranker.max_length 64 --data.batch_size 16 \
	  --trainer.max_epochs 2 --trainer.default_root_dir runs/judge-run --ckpt_path last
	$(BIN)/python experiments/wikiqa_judge.py data/wikiqa runs/judge-trained --run runs/judge-run
results/until_shown: | env
	$(BIN)/python experiments/until_shown.py
results/synthetic: | .venv/bench
	$(BIN)/python benchmarks/synthetic.py
results/lambdarank: | .venv/bench
	$(BIN)/python benchmarks/letor.py experiments/grids/lambdarank.yaml
results/mq2008: | .venv/bench data
	$(BIN)/python benchmarks/letor.py experiments/grids/mq2008.yaml

tables:  ## List the tables of make results/TABLE
	@for table in $(TABLES) $(OTHERS); do echo "  make results/$$table"; done

reproduce: $(addprefix results/,$(if $(QUICK),$(SHIPPED),$(TABLES) $(OTHERS)))  ## All tables (QUICK=1: one seed of what ships, in half an hour)
	$(BIN)/python experiments/reproduce.py $(if $(QUICK),--quick)

clean:  ## Remove what was built, not what was trained
	rm -rf build dist .venv .venv-newest .venv-oldest .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
