package doctor

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

func (p *picker) String() string { return p.name }

// checkSidecar says something wrong on purpose: only a sidecar minds, before any engine hears of it, and its answer has the
// header that only sidecars write. An engine finds no prompt in the body and refuses it.
func checkSidecar(ctx context.Context, f *fleet) finding {
	if len(f.of(pd.RoleDecode)) == 0 {
		return nobody("that decodes answers")
	}
	return each(ctx, f.live(), f.how.Timeout, func(ctx context.Context, t *target) finding {
		a, err := f.engines().ask(ctx, http.MethodPost, f.base(t)+pd.APICompletions.Path(), http.Header{
			"Content-Type":                         {"application/json"},
			http.CanonicalHeaderKey(pd.HeaderMode): {"doctor"},
		}, "{}")
		if !t.role.Has(pd.RoleDecode) {
			if err == nil && a.header.Get(pd.HeaderDecision) != "" {
				return finding{verdict: fail,
					seen: fmt.Sprintf("labelled %s, and a sidecar answers at %v, which lets no hand-off through", t.label, t.addr),
					do:   "correct the label, or name the engine's port in the pool"}
			}
			return finding{}
		}
		switch {
		case err != nil:
			return finding{verdict: fail, seen: err.Error()}
		case a.header.Get(pd.HeaderDecision) != "":
			return finding{verdict: ok, seen: "Tandem's"}
		case f.how.Sidecar == "any":
			return finding{verdict: unknown, seen: "not Tandem's; that of others cannot be told from an engine"}
		}
		return finding{verdict: fail, seen: fmt.Sprintf("no sidecar of Tandem's answers at %v", t.addr)}
	})
}

// noPicker is for checks that need one.
var noPicker = finding{verdict: unknown, seen: "no picker is known", do: "name its ports: --epp, --epp-health, --epp-metrics, --epp-admin"}

func checkPicker(ctx context.Context, f *fleet) finding {
	if len(f.pickers) == 0 {
		return noPicker
	}
	return each(ctx, f.pickers, f.how.Timeout, func(_ context.Context, p *picker) finding {
		switch {
		case p.trouble != "":
			return finding{verdict: fail, seen: p.trouble}
		case p.adminErr != nil:
			return finding{verdict: fail, seen: "its admin port: " + p.adminErr.Error()}
		case !p.asked:
			return finding{verdict: unknown, seen: "its health and metrics ports are not known", do: noPicker.do}
		}
		return finding{verdict: ok, seen: "ready"}
	})
}

// asked are the pickers that could be asked for a thing.
func (f *fleet) readable(has func(*picker) bool) []*picker {
	return slices.DeleteFunc(slices.Clone(f.pickers), func(p *picker) bool { return !has(p) })
}

func checkPickerConfig(ctx context.Context, f *fleet) finding {
	pickers := f.readable((*picker).hasOperations)
	if len(pickers) == 0 {
		return finding{verdict: unknown, seen: "no picker's metrics page is known", do: "name its metrics port with --epp-metrics"}
	}
	return each(ctx, pickers, f.how.Timeout, func(_ context.Context, p *picker) finding {
		loaded, known := p.page.Sum("tandem_config_last_reload_successful")
		trouble, _ := p.page.Sum("tandem_discovery_trouble")
		switch {
		case p.pageErr != nil:
			return finding{verdict: unknown, seen: "its metrics port: " + p.pageErr.Error()}
		case !known:
			return finding{verdict: unknown, seen: "its metrics page does not say: it is no picker of Tandem's"}
		case loaded == 0, trouble > 0:
			found := finding{verdict: fail, seen: "the last change could not be read"}
			if trouble > 0 {
				found.seen = "the source of its endpoints cannot be used, or not all of it"
				found.do = "correct the endpoints file or the pool; what was read last is in use. " +
					"Of a configuration, tandem check FILE lists what is wrong"
			}
			if p.detail != "" {
				found.seen += " (" + p.detail + ")"
			}
			return found
		}
		return finding{verdict: ok, seen: "in use as written"}
	})
}

func checkPickerPool(ctx context.Context, f *fleet) finding {
	pickers := f.readable(func(p *picker) bool { return p.admin != "" })
	if len(pickers) == 0 {
		return finding{verdict: unknown, seen: "its admin port, which shows them, is not known or on its loopback only",
			do: "name it with --epp-admin (kubectl port-forward brings it here)"}
	}
	return each(ctx, pickers, f.how.Timeout, func(_ context.Context, p *picker) finding {
		var missing, foreign []string
		for _, t := range f.targets {
			if !slices.ContainsFunc(p.known, func(e knownEndpoint) bool { return e.Address == t.addr.String() }) {
				missing = append(missing, t.name)
			}
		}
		for _, e := range p.known {
			if !slices.ContainsFunc(f.targets, func(t *target) bool { return e.Address == t.addr.String() }) {
				foreign = append(foreign, e.shortName())
			}
		}
		switch {
		case p.adminErr != nil:
			return finding{verdict: unknown, seen: "its admin port: " + p.adminErr.Error()}
		case len(f.targets)+len(p.known) == 0:
			return finding{verdict: unknown, seen: "there are no endpoints to know"}
		case len(missing) > 0:
			return finding{verdict: fail, seen: "it does not know " + few(missing)}
		case len(foreign) > 0:
			return finding{verdict: fail, seen: "it also knows " + few(foreign)}
		}
		return finding{verdict: ok, seen: fmt.Sprintf("knows all %d", len(p.known))}
	})
}

// oldLoad is when a picker trusts a load no more (its --metrics-staleness-threshold is 2 s), and some for the way here.
const oldLoad = 3 * time.Second

func checkFreshness(ctx context.Context, f *fleet) finding {
	if len(f.pickers) == 0 {
		return noPicker
	}
	return each(ctx, f.pickers, f.how.Timeout, func(_ context.Context, p *picker) finding {
		if p.known != nil {
			return f.ages(p.known)
		}
		if p.pageErr != nil {
			return finding{verdict: unknown, seen: "its metrics port: " + p.pageErr.Error()}
		}
		unread, known := 0.0, false
		for _, s := range p.page {
			if s.Name == "tandem_endpoints" && s.Value > 0 {
				known = true
				if s.Labels["state"] == "stale" || s.Labels["state"] == "unread" {
					unread += s.Value
				}
			}
		}
		switch {
		case !p.hasOperations():
			return finding{verdict: unknown, seen: "its metrics and admin ports are not known", do: noPicker.do}
		case !known:
			return finding{verdict: unknown, seen: "its metrics page tells of no endpoints"}
		case unread > 0:
			return finding{verdict: fail, seen: fmt.Sprintf("%.0f endpoints whose load is old or was never read", unread)}
		}
		return finding{verdict: ok, seen: "all loads are fresh"}
	})
}

// ages looks at the loads of the endpoints that answer: that nobody knows those of others is no wonder.
func (f *fleet) ages(known []knownEndpoint) finding {
	var old []string
	oldest := -1.0
	for _, e := range known {
		at := slices.IndexFunc(f.targets, func(t *target) bool { return t.addr.String() == e.Address })
		switch {
		case at < 0 || f.targets[at].alive != nil:
		case e.LoadAge < 0:
			old = append(old, e.shortName()+" was never read")
		case e.LoadAge > oldLoad.Seconds():
			old = append(old, fmt.Sprintf("%s is of %.0f s ago", e.shortName(), e.LoadAge))
		default:
			oldest = max(oldest, e.LoadAge)
		}
	}
	switch {
	case len(old) > 0:
		return finding{verdict: fail, seen: "the load of " + few(old)}
	case oldest < 0:
		return finding{verdict: unknown, seen: "it knows no endpoint that answers"}
	}
	return finding{verdict: ok, seen: fmt.Sprintf("the oldest load is of %.1f s ago", oldest)}
}

func checkProxy(ctx context.Context, f *fleet) finding {
	if f.parts.Proxy == "" {
		return finding{verdict: unknown, seen: "no proxy is known", do: "name where clients connect to with --proxy"}
	}
	ctx, cancel := context.WithTimeout(ctx, f.how.Timeout)
	defer cancel()
	models, err := f.user().models(ctx, f.proxyURL())
	if err != nil {
		return finding{verdict: fail, seen: fmt.Sprintf("asking %s for its models: %v", f.parts.Proxy, err)}
	}
	for _, t := range f.modelled() {
		if t.base().ID != models[0].ID {
			return finding{verdict: fail, seen: fmt.Sprintf("it leads to %s, and the pool serves %s", models[0].ID, t.base().ID),
				do: "have the proxy ask this pool's picker"}
		}
	}
	return finding{verdict: ok, seen: "leads to " + models[0].ID}
}

func (f *fleet) proxyURL() string {
	if strings.Contains(f.parts.Proxy, "://") {
		return strings.TrimSuffix(f.parts.Proxy, "/")
	}
	return "http://" + f.parts.Proxy
}
