package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/pd"
)

// tested are the versions of vLLM and SGLang that Tandem's end-to-end suites run on.
const (
	tested       = "0.32."
	testedSGLang = "0.5."
)

// blockLabel is the label with the tokens in a KV block.
const blockLabel = "block_size"

func noEngine(what string) finding { return finding{verdict: unknown, seen: "no engine " + what} }

func checkMetrics(ctx context.Context, f *fleet) finding {
	live := f.live()
	if len(live) == 0 {
		return noEngine("answers")
	}
	return each(ctx, live, f.how.Timeout, func(_ context.Context, t *target) finding {
		switch {
		case t.pageErr != nil && t.trtllm():
			return finding{verdict: fail, seen: t.pageErr.Error(), do: "start the engine with return_perf_metrics: true in its configuration"}
		case t.pageErr != nil:
			return finding{verdict: fail, seen: t.pageErr.Error()}
		case t.vllm():
			return finding{verdict: ok, seen: "vLLM's"}
		case t.page.Has("sglang:"):
			return finding{verdict: ok, seen: "SGLang's"}
		case t.page.Has("trtllm_"):
			return finding{verdict: ok, seen: "TensorRT-LLM's"}
		}
		return finding{verdict: fail, seen: "its metrics page is not that of an engine"}
	})
}

func checkVersion(_ context.Context, f *fleet) finding {
	live := f.live()
	var telling []*target
	for _, t := range live {
		if t.versionErr == nil {
			telling = append(telling, t)
		}
	}
	if len(telling) == 0 {
		return noEngine("shows its version (/version)")
	}
	if seen := differ(telling, func(t *target) string { return t.version }); seen != "" {
		return finding{verdict: warn, seen: seen} // the check of pairs says whether a decode engine is left alone by it
	}
	found := finding{verdict: ok, seen: "all " + telling[0].version}
	tested := tested
	if telling[0].sglang() {
		tested = testedSGLang
	}
	if !strings.HasPrefix(telling[0].version, tested) {
		found = finding{verdict: warn, seen: found.seen + ", a version that Tandem was not tested with (" + tested + "x was)",
			do: "try it with --probe before traffic does"}
	}
	if quiet := len(live) - len(telling); quiet > 0 && found.verdict == ok {
		found = finding{verdict: unknown, seen: fmt.Sprintf("%s, but %d do not show their version", found.seen, quiet)}
	}
	return found
}

// modelled returns the endpoints that show which model they serve.
func (f *fleet) modelled() (telling []*target) {
	for _, t := range f.live() {
		if t.modelsErr == nil {
			telling = append(telling, t)
		}
	}
	return telling
}

// base returns the model that an engine was started with: adapters come after it.
func (t *target) base() model { return t.models[0] }

func checkModel(_ context.Context, f *fleet) finding {
	for _, t := range f.live() {
		if t.modelsErr == nil {
			continue
		}
		found := finding{verdict: fail, seen: fmt.Sprintf("%s: %v", t, t.modelsErr), do: "wait until it has loaded its model; its log shows the progress"}
		if t.modelsErr == statusError(401) {
			found = finding{verdict: unknown, seen: found.seen, do: "pass the engines' API key with --api-key-file"}
		}
		return found
	}
	telling := f.modelled()
	if len(telling) == 0 {
		return noEngine("shows its model (/v1/models)")
	}
	if seen := differ(telling, func(t *target) string { return t.base().ID + " from " + cmp.Or(t.base().Root, t.base().ID) }); seen != "" {
		return finding{verdict: fail, seen: seen}
	}
	return finding{verdict: ok, seen: "all " + telling[0].base().ID}
}

func checkLength(_ context.Context, f *fleet) finding {
	telling := slices.DeleteFunc(f.modelled(), func(t *target) bool { return t.base().MaxModelLen == 0 })
	if len(telling) == 0 {
		return noEngine("shows its longest prompt (/v1/models)")
	}
	if seen := differ(telling, func(t *target) string { return strconv.Itoa(t.base().MaxModelLen) }); seen != "" {
		return finding{verdict: fail, seen: seen}
	}
	return finding{verdict: ok, seen: fmt.Sprintf("all %d tokens", telling[0].base().MaxModelLen)}
}

// cached returns the endpoints that show their KV cache configuration.
func (f *fleet) cached() (telling []*target) {
	for _, t := range f.live() {
		if t.cacheInfo(blockLabel) != "" {
			telling = append(telling, t)
		}
	}
	return telling
}

func checkBlockSize(_ context.Context, f *fleet) finding {
	telling := f.cached()
	if len(telling) == 0 {
		return noEngine("shows its block size (vllm:cache_config_info, " + sglangBlock + ", " + trtllmBlock + ")")
	}
	if seen := differ(telling, func(t *target) string { return t.cacheInfo(blockLabel) }); seen != "" {
		if !slices.ContainsFunc(telling, (*target).vllm) {
			return finding{verdict: fail, seen: seen}
		}
		return finding{verdict: warn, seen: seen} // engines of vLLM compare the blocks of their attention kernels, which are smaller
	}
	size := telling[0].cacheInfo(blockLabel)
	for _, p := range f.pickers {
		if p.block > 0 && strconv.Itoa(p.block) != size {
			return finding{verdict: warn, seen: fmt.Sprintf("all engines %s tokens, but the prefix index of %s %d", size, p.name, p.block),
				do: "set blockSizeTokens of the picker's prefix cache producer to " + size + ", or autoTune to true"}
		}
	}
	return finding{verdict: ok, seen: "all " + size + " tokens"}
}

// cacheLabels are the labels that must be equal for engines to read each other's blocks and to compute equal hashes.
var cacheLabels = []string{"cache_dtype", "kv_cache_layout", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "sliding_window", "hash_block_size", "prefix_caching_hash_algo"}

func checkCache(_ context.Context, f *fleet) finding {
	telling := slices.DeleteFunc(f.cached(), func(t *target) bool { return !t.vllm() })
	if f.onlySGLang() {
		return finding{} // they do not show it
	}
	if len(telling) == 0 {
		return noEngine("shows its KV cache configuration (vllm:cache_config_info)")
	}
	var seen []string
	for _, label := range cacheLabels {
		if found := differ(telling, func(t *target) string { return cmp.Or(t.cacheInfo(label), "nothing") }); found != "" {
			seen = append(seen, label+" "+found)
		}
	}
	if len(seen) > 0 {
		return finding{verdict: fail, seen: strings.Join(seen, "; ")}
	}
	for _, t := range telling {
		if t.cacheInfo("enable_prefix_caching") == "False" {
			return finding{verdict: warn, seen: t.name + " has prefix caching off", do: "start it with --enable-prefix-caching: the picker prefers engines that have a prompt's prefix cached"}
		}
	}
	return finding{verdict: ok, seen: fmt.Sprintf("type %s, hashes %s", cmp.Or(telling[0].cacheInfo("cache_dtype"), "not shown"),
		cmp.Or(telling[0].cacheInfo("prefix_caching_hash_algo"), "not shown"))}
}

// notShown says where the doctor looks for engine arguments.
const notShown = "engines show it only in developer mode (VLLM_SERVER_DEV_MODE=1), or in the arguments of a pod"

func checkParallelism(_ context.Context, f *fleet) finding {
	if f.onlySGLang() {
		return finding{} // it is read of engines of vLLM
	}
	most, least := 0, 0
	for _, t := range f.live() {
		tensor := t.info.Config.Parallel.Tensor
		if tensor == 0 {
			return finding{verdict: unknown, seen: notShown}
		}
		if t.role.Has(pd.RolePrefill) {
			most = max(most, tensor)
		}
		if t.role.Has(pd.RoleDecode) && (least == 0 || tensor < least) {
			least = tensor
		}
	}
	if most == 0 || least == 0 {
		return finding{verdict: unknown, seen: "one of the roles does not answer"}
	}
	seen := fmt.Sprintf("tensor parallelism: prefill %d, decode %d", most, least)
	if most > least {
		// vLLM refuses that if prefill has more ranks than the model has KV heads, which is not known here.
		return finding{verdict: warn, seen: seen}
	}
	return finding{verdict: ok, seen: seen}
}
