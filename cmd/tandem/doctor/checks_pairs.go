package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// nixlFamilies is the beginning of the names of the metrics that vLLM's engines have if they hand KV caches over by NIXL.
const nixlFamilies = "vllm:nixl_"

// traits returns the properties on which it depends which KV caches an engine reads: those that it tells itself, and for the others its labels.
func (t *target) traits() epp.KVTraits {
	k := t.shown()
	k.Engine = cmp.Or(k.Engine, t.told.Engine)
	k.Version = cmp.Or(k.Version, t.told.Version)
	k.CacheType = cmp.Or(k.CacheType, t.told.CacheType)
	k.TensorParallel = cmp.Or(k.TensorParallel, t.told.TensorParallel)
	return k
}

// shown returns the properties that the engine tells itself: those that the picker reads on its metrics page, and its version and
// parallelism, which the picker knows by labels only.
func (t *target) shown() (k epp.KVTraits) {
	switch {
	case t.sglang():
		k.Engine = epp.EngineSGLang
	case t.vllm():
		k.Engine = epp.EngineVLLM
	case t.trtllm():
		k.Engine = epp.EngineTRTLLM
	}
	if t.page.Has(nixlFamilies) {
		k.Connector = epp.ConnectorNIXL
	}
	if of := t.cacheInfo("cache_dtype"); of != epp.CacheTypeAuto {
		k.CacheType = of
	}
	k.BlockTokens, _ = strconv.Atoi(t.cacheInfo(blockLabel)) // 0 if ranks differ: compared with nothing
	if t.versionErr == nil {
		k.Version = t.version
	}
	k.TensorParallel = t.info.Config.Parallel.Tensor
	return k
}

// checkPairs tells which decode engines refuse the KV caches of which prefill engines, by the rules that the picker goes by.
func checkPairs(_ context.Context, f *fleet) finding {
	var prefill, decode []*target
	for _, t := range f.live() {
		if t.role.Has(pd.RolePrefill) {
			prefill = append(prefill, t)
		}
		if t.role.Has(pd.RoleDecode) {
			decode = append(decode, t)
		}
	}
	served := make([]bool, len(prefill))
	var alone, refused []string
	pairs := 0
	for _, d := range decode {
		fits, why := false, ""
		for i, p := range prefill {
			if p == d {
				continue
			}
			pairs++
			own, other := d.traits(), p.traits()
			if refusal := own.Refuses(other); refusal != "" {
				why = refusal
				refused = append(refused, fmt.Sprintf("%s → %s: %s", p, d, refusal))
				continue
			}
			fits, served[i] = true, true
		}
		if !fits && why != "" {
			alone = append(alone, fmt.Sprintf("%s reads KV caches of no prefill engine: %s", d, why))
		}
	}
	for i, p := range prefill {
		if !served[i] && !p.role.Has(pd.RoleDecode) && pairs > 0 {
			alone = append(alone, fmt.Sprintf("no decode engine reads KV caches of %s", p))
		}
	}
	switch {
	case pairs == 0:
		return finding{verdict: unknown, seen: "one of the roles does not answer"}
	case len(alone) > 0:
		return finding{verdict: fail, seen: fewOf(alone, "; ")}
	case len(refused) > 0:
		return finding{verdict: warn, seen: fmt.Sprintf("%d of %d pairs are refused: %s", len(refused), pairs, fewOf(refused, "; ")),
			do: fmt.Sprintf("the picker proposes no such pair if it knows: versions by the label %s, parallelism by %s, cache types by metrics pages or %s",
				epp.LabelEngineVersion, epp.LabelTensorParallel, epp.LabelCacheType)}
	}
	return finding{verdict: ok, seen: fmt.Sprintf("none of %d pairs is known to be refused", pairs)}
}

// checkLabels compares the labels of endpoints, which the picker goes by where metrics pages tell nothing, with what the engines tell.
func checkLabels(_ context.Context, f *fleet) finding {
	var wrong []string
	labels := 0
	for _, t := range f.live() {
		is := t.shown()
		for _, of := range []struct {
			label     string
			told, has any // strings or numbers; "" and 0: not known
		}{
			{epp.EngineLabel, t.told.Engine, is.Engine},
			{epp.LabelEngineVersion, t.told.Version, is.Version},
			{epp.LabelCacheType, t.told.CacheType, is.CacheType},
			{epp.LabelTensorParallel, t.told.TensorParallel, is.TensorParallel},
		} {
			if of.told == "" || of.told == 0 {
				continue
			}
			labels++
			if of.has != "" && of.has != 0 && of.told != of.has && !(of.label == epp.LabelCacheType && epp.SameCacheType(t.told.CacheType, is.CacheType)) {
				wrong = append(wrong, fmt.Sprintf("%s: %s is %v, the engine's is %v", t, of.label, of.told, of.has))
			}
		}
	}
	switch {
	case len(f.live()) == 0:
		return finding{verdict: unknown, seen: "no engine answers"}
	case len(wrong) > 0:
		return finding{verdict: warn, seen: fewOf(wrong, "; ")}
	case labels == 0:
		return finding{verdict: ok, seen: "endpoints have no such labels"}
	}
	return finding{verdict: ok, seen: fmt.Sprintf("none of %d labels contradicts its engine", labels)}
}
