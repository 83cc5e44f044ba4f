package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// sglangInfo is what an SGLang engine says of itself. Tandem's sidecar passes /model_info and /v1/loads, and refuses /server_info,
// which shows every argument: prefill engines show it, decode engines only where no sidecar of SGLang's protocol is before them.
type sglangInfo struct {
	mode       epp.EngineMode
	noPrefixes bool // the engine keeps no beginnings of prompts
	version    string
	args       *sglangArgs // nil: not shown
	throughAll bool        // a sidecar passes /server_info, which that of SGLang's protocol refuses
}

// sglangArgs are arguments of an SGLang engine in its /server_info.
type sglangArgs struct {
	Backend string `json:"disaggregation_transfer_backend"`
	Port    int    `json:"disaggregation_bootstrap_port"`
	Ranks   int    `json:"dp_size"`
	Balance string `json:"load_balance_method"`
}

// sglang reports whether the metrics page is that of an SGLang engine.
func (t *target) sglang() bool { return t.page.Has("sglang:") }

// meetSGLang reads what an SGLang engine says of itself beside its metrics page.
func (f *fleet) meetSGLang(ctx context.Context, t *target) {
	ctx, cancel := context.WithTimeout(ctx, f.how.Timeout)
	defer cancel()
	ask, base := f.engines(), f.base(t)
	for _, labels := range t.page.Labels("sglang:page_size") {
		t.sg.mode = epp.ParseEngineMode(labels["engine_type"])
	}
	var loads struct{ Version string }
	if err := ask.getJSON(ctx, base+"/v1/loads", &loads); err == nil {
		t.sg.version = loads.Version
	}
	var model struct {
		Mode      string `json:"disaggregation_mode"`
		Embedding struct {
			Cache struct {
				Off bool `json:"radix_cache_disabled"`
			} `json:"cache"`
		} `json:"embedding"`
	}
	if err := ask.getJSON(ctx, base+"/model_info", &model); err == nil {
		t.sg.noPrefixes = model.Embedding.Cache.Off
		if mode := epp.ParseEngineMode(model.Mode); mode != epp.EngineAny {
			t.sg.mode = mode
		}
	}
	var args sglangArgs
	if err := ask.getJSON(ctx, base+"/server_info", &args); err == nil {
		t.sg.args = &args
		a, err := ask.ask(ctx, http.MethodGet, base+pd.PathSidecar, nil, "")
		t.sg.throughAll = err == nil && string(a.body) == pd.SidecarIdentity
	}
}

// sglangs returns the SGLang engines that answer.
func (f *fleet) sglangs() []*target {
	return slices.DeleteFunc(f.live(), func(t *target) bool { return !t.sglang() })
}

// onlySGLang reports whether every engine that answers is one of SGLang, and there is one.
func (f *fleet) onlySGLang() bool {
	all := len(f.sglangs())
	return all > 0 && all == len(f.live())
}

// inMode returns the SGLang engines of a mode.
func (f *fleet) inMode(m epp.EngineMode) []*target {
	return slices.DeleteFunc(f.sglangs(), func(t *target) bool { return t.sg.mode != m })
}

// checkModes compares the modes of SGLang engines with their roles, and says what the pool cannot serve.
func checkModes(ctx context.Context, f *fleet) finding {
	all := f.sglangs()
	if len(all) == 0 {
		return finding{}
	}
	found := each(ctx, all, f.how.Timeout, func(_ context.Context, t *target) finding { return t.fitsRole() })
	if found.verdict != ok {
		return found
	}
	prefill, decode, plain := len(f.inMode(epp.EnginePrefill)), len(f.inMode(epp.EngineDecode)), len(f.inMode(epp.EnginePlain))
	found.seen = fmt.Sprintf("%d prefill, %d decode, %d plain", prefill, decode, plain)
	switch {
	case prefill > 0 && decode == 0:
		return finding{verdict: fail, seen: found.seen + ": plain engines take no hand-offs, so nothing is prefilled remotely",
			do: "start the decode engines with --disaggregation-mode decode"}
	case decode > 0 && plain == 0:
		found.seen += ": requests with x-tandem-pd: bypass and those that cannot be split are refused, and all are while no prefill pod is there; a plain engine would take them"
	}
	keeps := slices.DeleteFunc(f.inMode(epp.EngineDecode), func(t *target) bool { return t.sg.noPrefixes })
	if off := decode - len(keeps); off > 0 {
		found.seen += fmt.Sprintf("; %d decode without a prefix cache (--disaggregation-decode-enable-radix-cache)", off)
	}
	return found
}

// fitsRole compares the engine's mode with its role.
func (t *target) fitsRole() finding {
	want := map[epp.EngineMode]pd.Role{epp.EnginePrefill: pd.RolePrefill, epp.EngineDecode: pd.RoleDecode, epp.EnginePlain: pd.RoleDecode}
	role, known := want[t.sg.mode]
	switch {
	case !known:
		return finding{verdict: unknown, seen: "the engine does not show its mode (/model_info)"}
	case !t.role.Has(role):
		return finding{verdict: fail, seen: fmt.Sprintf("labelled %s, and its engine runs in the mode %s", t.role, t.sg.mode)}
	case t.role.Has(pd.RolePrefill|pd.RoleDecode) && t.sg.mode != epp.EnginePlain:
		return finding{verdict: warn, seen: fmt.Sprintf("labelled %s, but its engine runs in the mode %s and does only that", t.role, t.sg.mode)}
	}
	return finding{verdict: ok}
}

// testedBackend is SGLang's transfer backend that Tandem's suite runs on.
const testedBackend = "nixl"

// checkBackend compares the transfer backends of the engines in P/D that show theirs.
func checkBackend(_ context.Context, f *fleet) finding {
	pairs := append(f.inMode(epp.EnginePrefill), f.inMode(epp.EngineDecode)...)
	telling := slices.DeleteFunc(slices.Clone(pairs), func(t *target) bool { return t.sg.args == nil })
	switch {
	case len(pairs) == 0:
		return finding{}
	case len(telling) == 0:
		return noEngine("shows its arguments (/server_info)")
	}
	if seen := differ(telling, func(t *target) string { return t.sg.args.Backend }); seen != "" {
		return finding{verdict: fail, seen: seen}
	}
	found := finding{verdict: ok, seen: telling[0].sg.args.Backend}
	if found.seen != testedBackend {
		found = finding{verdict: warn, seen: found.seen + ", which Tandem was not tested with (" + testedBackend + " was)", do: "try it with --probe before traffic does"}
	}
	if quiet := len(pairs) - len(telling); quiet > 0 && found.verdict == ok {
		found.seen += fmt.Sprintf("; %d behind sidecars do not show theirs", quiet)
	}
	return found
}

// checkBootstrap asks the bootstrap server of each prefill engine which engine it belongs to. An engine whose server could not bind
// its port says only in its log that it has none, and is healthy otherwise.
func checkBootstrap(ctx context.Context, f *fleet) finding {
	prefill := slices.DeleteFunc(f.inMode(epp.EnginePrefill), func(t *target) bool { return t.sg.args == nil })
	if len(prefill) == 0 {
		return finding{}
	}
	return each(ctx, prefill, f.how.Timeout, func(ctx context.Context, t *target) finding {
		port := t.sg.args.Port
		base := f.reach.url(t, "http", uint16(port), "")
		asker := asker{client: f.reach.client()}
		var route struct {
			Port  *int `json:"prefill_http_port"`
			Ranks int  `json:"dp_size"`
		}
		if a, err := asker.get(ctx, base+"/health"); err != nil {
			return finding{verdict: fail, seen: fmt.Sprintf("port %d: %v", port, err)}
		} else if strings.TrimSpace(string(a.body)) != "OK" {
			return finding{verdict: fail, seen: fmt.Sprintf("port %d: another service than a bootstrap server answers", port)}
		}
		a, err := asker.get(ctx, base+"/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1")
		if err == nil {
			err = json.Unmarshal(a.body, &route)
		}
		switch {
		case err != nil || route.Port == nil:
			return finding{verdict: fail, seen: fmt.Sprintf("port %d: no prefill engine has registered at the bootstrap server", port)}
		case *route.Port != int(t.addr.Port()):
			return finding{verdict: fail, seen: fmt.Sprintf("port %d: the bootstrap server is that of the engine at port %d", port, *route.Port)}
		}
		return finding{verdict: ok, seen: "port " + strconv.Itoa(port)}
	})
}

// checkRanks says what the data-parallel ranks of prefill engines need. By SGLang's default an engine goes by the room, and fails
// half of the requests of two ranks unless both legs name the rank.
func checkRanks(_ context.Context, f *fleet) finding {
	ranked := slices.DeleteFunc(f.inMode(epp.EnginePrefill), func(t *target) bool { return t.sg.args == nil || t.sg.args.Ranks < 2 })
	if len(ranked) == 0 {
		return finding{}
	}
	var names []string
	for _, t := range ranked {
		names = append(names, fmt.Sprintf("%s: %d, %s", t.name, t.sg.args.Ranks, t.sg.args.Balance))
	}
	seen := fewOf(names, "; ")
	if f.how.Sidecar != "tandem" {
		return finding{verdict: warn, seen: seen}
	}
	return finding{verdict: ok, seen: seen + "; Tandem's sidecar names the rank in both legs"}
}

// The time-outs of SGLang's engines.
const (
	bootstrapTimeout = "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT" // of prefill
	waitingTimeout   = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"   // of decode
	defaultWait      = 300 * time.Second
	longestWait      = 60 * time.Second // the sidecar's default of --prefill-timeout
)

// checkTimeouts reads for how long engines wait for the other leg. After a restart of a prefill engine that decode did not notice,
// only that ends the failures, and until then a lost leg keeps its pages.
func checkTimeouts(ctx context.Context, f *fleet) finding {
	pairs := append(f.inMode(epp.EnginePrefill), f.inMode(epp.EngineDecode)...)
	if len(pairs) == 0 {
		return finding{}
	}
	return each(ctx, pairs, f.how.Timeout, func(_ context.Context, t *target) finding {
		name := waitingTimeout
		if t.sg.mode == epp.EnginePrefill {
			name = bootstrapTimeout
		}
		if t.pod == nil {
			return finding{verdict: unknown, seen: "only a pod shows " + name + "; the default is " + defaultWait.String()}
		}
		value, set := variable(t.pod, name)
		seconds, err := strconv.Atoi(value)
		switch wait := time.Duration(seconds) * time.Second; {
		case set && value == hidden:
			return finding{verdict: unknown, seen: "its pod does not show " + name}
		case !set, err != nil:
			return finding{verdict: warn, seen: name + " is not set, so it waits " + defaultWait.String()}
		case wait > longestWait:
			return finding{verdict: warn, seen: fmt.Sprintf("%s is %v", name, wait)}
		default:
			return finding{verdict: ok, seen: wait.String()}
		}
	})
}
