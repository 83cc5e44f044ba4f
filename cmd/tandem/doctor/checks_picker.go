package doctor

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

func (p *picker) String() string { return p.name }

// checkSidecar sends a request that only a sidecar answers itself. Neither sidecars nor engines count it as a failure of a client.
func checkSidecar(ctx context.Context, f *fleet) finding {
	if len(f.of(pd.RoleDecode)) == 0 {
		return noEngine("that decodes answers")
	}
	return each(ctx, f.live(), f.how.Timeout, func(ctx context.Context, t *target) finding {
		a, err := f.engines().ask(ctx, http.MethodGet, f.base(t)+pd.PathSidecar, nil, "")
		isSidecar := err == nil && a.status == http.StatusOK && string(a.body) == pd.SidecarIdentity
		if !t.role.Has(pd.RoleDecode) {
			if isSidecar {
				return finding{verdict: fail,
					seen: fmt.Sprintf("labelled %s, but a sidecar answers at %v, and sidecars strip hand-offs from requests", t.label, t.addr),
					do:   "correct the label, or put the engine's port into the pool"}
			}
			return finding{}
		}
		switch {
		case err != nil:
			return finding{verdict: fail, seen: err.Error()}
		case isSidecar:
			return finding{verdict: ok, seen: "Tandem's"}
		case t.sg.mode == epp.EnginePlain:
			return finding{verdict: ok, seen: "a plain engine, which needs none"}
		case f.how.Sidecar == "any":
			return finding{verdict: unknown, seen: "not Tandem's; another sidecar cannot be told from an engine"}
		}
		return finding{verdict: fail, seen: fmt.Sprintf("no Tandem sidecar answers at %v", t.addr)}
	})
}

// noPicker is the finding of a check that needs a picker and has none.
var noPicker = finding{verdict: unknown, seen: "the address of the picker is unknown", do: "name its ports: --epp, --epp-health, --epp-metrics, --epp-admin"}

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
			return finding{verdict: unknown, seen: "its health and metrics ports are unknown", do: noPicker.do}
		}
		return finding{verdict: ok, seen: "ready"}
	})
}

// readable returns the pickers that have a certain address or page.
func (f *fleet) readable(has func(*picker) bool) []*picker {
	return slices.DeleteFunc(slices.Clone(f.pickers), func(p *picker) bool { return !has(p) })
}

func checkPickerConfig(ctx context.Context, f *fleet) finding {
	pickers := f.readable((*picker).hasOperations)
	if len(pickers) == 0 {
		return finding{verdict: unknown, seen: "no metrics page of a picker is known", do: "name its metrics port with --epp-metrics"}
	}
	return each(ctx, pickers, f.how.Timeout, func(_ context.Context, p *picker) finding {
		loaded, known := p.page.Sum("tandem_config_last_reload_successful")
		trouble, _ := p.page.Sum("tandem_discovery_trouble")
		switch {
		case p.pageErr != nil:
			return finding{verdict: unknown, seen: "its metrics port: " + p.pageErr.Error()}
		case !known:
			return finding{verdict: unknown, seen: "its metrics page does not show it: the picker is not Tandem's"}
		case loaded == 0, trouble > 0:
			found := finding{verdict: fail, seen: "its last configuration change could not be read"}
			if trouble > 0 {
				found.seen = "its source of endpoints is invalid, or partly so"
				found.do = "correct the endpoints file or the pool; the last good content is in use. " +
					"For a configuration file, tandem check FILE lists the problems"
			}
			if p.detail != "" {
				found.seen += " (" + p.detail + ")"
			}
			return found
		}
		return finding{verdict: ok, seen: "the current files are in use"}
	})
}

func checkPickerPool(ctx context.Context, f *fleet) finding {
	pickers := f.readable(func(p *picker) bool { return p.admin != "" })
	if len(pickers) == 0 {
		return finding{verdict: unknown, seen: "its admin port, which shows them, is unknown or on its loopback only",
			do: "name it with --epp-admin (use kubectl port-forward to reach it)"}
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
			return finding{verdict: unknown, seen: "there are no endpoints"}
		case len(missing) > 0:
			return finding{verdict: fail, seen: "it does not know " + few(missing)}
		case len(foreign) > 0:
			return finding{verdict: fail, seen: "it also knows " + few(foreign)}
		}
		return finding{verdict: ok, seen: fmt.Sprintf("knows all %d", len(p.known))}
	})
}

// oldLoad is the age from which a picker does not trust a load any more (its --metrics-staleness-threshold is 2 s), plus
// some time for the request.
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
			return finding{verdict: unknown, seen: "its metrics and admin ports are unknown", do: noPicker.do}
		case !known:
			return finding{verdict: unknown, seen: "its metrics page shows no endpoints"}
		case unread > 0:
			return finding{verdict: fail, seen: fmt.Sprintf("the load of %.0f endpoints is old or was never read", unread)}
		}
		return finding{verdict: ok, seen: "all loads are fresh"}
	})
}

// ages checks the loads of the endpoints that answer. A picker cannot know the loads of the others.
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
			old = append(old, fmt.Sprintf("%s is %.0f s old", e.shortName(), e.LoadAge))
		default:
			oldest = max(oldest, e.LoadAge)
		}
	}
	switch {
	case len(old) > 0:
		return finding{verdict: fail, seen: "the load of " + few(old)}
	case oldest < 0:
		return finding{verdict: unknown, seen: "it knows none of the endpoints that answer"}
	}
	return finding{verdict: ok, seen: fmt.Sprintf("the oldest load is %.1f s old", oldest)}
}

func checkProxy(ctx context.Context, f *fleet) finding {
	if f.parts.Proxy == "" {
		return finding{verdict: unknown, seen: "the address of the proxy is unknown", do: "name the address that clients connect to with --proxy"}
	}
	ctx, cancel := context.WithTimeout(ctx, f.how.Timeout)
	defer cancel()
	models, err := f.user().models(ctx, f.proxyURL())
	if err != nil {
		return finding{verdict: fail, seen: fmt.Sprintf("reading the models at %s: %v", f.parts.Proxy, err)}
	}
	for _, t := range f.modelled() {
		if t.base().ID != models[0].ID {
			return finding{verdict: fail, seen: fmt.Sprintf("it serves %s, but the pool serves %s", models[0].ID, t.base().ID),
				do: "make the proxy use this pool's picker"}
		}
	}
	return finding{verdict: ok, seen: "serves " + models[0].ID}
}

func (f *fleet) proxyURL() string {
	if strings.Contains(f.parts.Proxy, "://") {
		return strings.TrimSuffix(f.parts.Proxy, "/")
	}
	return "http://" + f.parts.Proxy
}
