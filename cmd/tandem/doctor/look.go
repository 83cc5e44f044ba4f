package doctor

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
)

// facts are what an endpoint says of itself.
type facts struct {
	alive  error // nil: it answers
	scheme string
	skew   skew

	version    string
	versionErr error
	models     []model
	modelsErr  error
	page       promtext.Page
	pageErr    error
	info       serverInfo // zero where the engine does not show it
}

// model is an entry of /v1/models.
type model struct {
	ID          string `json:"id"`
	Root        string `json:"root"`
	MaxModelLen int    `json:"max_model_len"`
}

// serverInfo is what vLLM tells of its arguments, in developer mode only.
type serverInfo struct {
	Config struct {
		Transfer struct {
			Connector string `json:"kv_connector"`
			Role      string `json:"kv_role"`
		} `json:"kv_transfer_config"`
		Parallel struct {
			Tensor int `json:"tensor_parallel_size"`
		} `json:"parallel_config"`
	} `json:"vllm_config"`
}

// look asks everybody for all that the checks need, at once.
func (f *fleet) look(ctx context.Context) {
	parallel(f.targets, func(t *target) { f.meet(ctx, t) })
	parallel(f.pickers, func(p *picker) { f.meetPicker(ctx, p) })
	parallel(f.sidecars, func(s *operated) { f.meetSidecar(ctx, s) })
}

// meet looks at one endpoint. Only one that answers is asked for more.
func (f *fleet) meet(ctx context.Context, t *target) {
	within := func(look func(context.Context)) {
		ctx, cancel := context.WithTimeout(ctx, f.how.Timeout)
		defer cancel()
		look(ctx)
	}
	within(func(ctx context.Context) { f.greet(ctx, t) })
	if t.alive != nil {
		return
	}
	parallel([]func(context.Context){
		func(ctx context.Context) { t.version, t.versionErr = f.version(ctx, t) },
		func(ctx context.Context) { t.models, t.modelsErr = f.engines().models(ctx, f.base(t)) },
		func(ctx context.Context) { t.page, t.pageErr = f.engines().metrics(ctx, f.base(t)) },
		func(ctx context.Context) { t.info = f.serverInfo(ctx, t) },
	}, func(look func(context.Context)) { within(look) })
}

// base is the URL of an endpoint, without a path.
func (f *fleet) base(t *target) string { return f.reach.url(t, t.scheme, t.addr.Port(), "") }

// greet asks /health, in plaintext and, if that is not spoken there, over TLS.
func (f *fleet) greet(ctx context.Context, t *target) {
	t.scheme = "http"
	a, err := f.engines().ask(ctx, http.MethodGet, f.base(t)+"/health", nil, "")
	if err != nil && !refused(err) || err == nil && bytes.Contains(a.body, []byte("HTTPS server")) { // so Go answers on a TLS port
		t.scheme = "https"
		if over, tlsErr := f.engines().ask(ctx, http.MethodGet, f.base(t)+"/health", nil, ""); tlsErr == nil {
			a, err = over, nil
		} else {
			t.scheme = "http" // what plaintext got says more
		}
	}
	switch {
	case err != nil:
		t.alive = err
		return
	case a.status != http.StatusOK:
		t.alive = statusError(a.status)
	}
	t.skew = a.skew
}

func (f *fleet) version(ctx context.Context, t *target) (string, error) {
	var v struct{ Version string }
	err := f.engines().getJSON(ctx, f.base(t)+"/version", &v)
	if err == nil && v.Version == "" {
		err = errors.New("its /version names none")
	}
	return v.Version, err
}

// serverInfo is empty for engines that do not tell, which is no trouble.
func (f *fleet) serverInfo(ctx context.Context, t *target) (info serverInfo) {
	if err := f.engines().getJSON(ctx, f.base(t)+"/server_info?config_format=json", &info); err != nil {
		info = serverInfo{}
	}
	info.fromPod(t.pod)
	return info
}

// vllm tells whether the metrics page is that of a vLLM, or of what plays one.
func (t *target) vllm() bool { return t.page.Has("vllm:") }

// cacheInfo is a label of the page's cache_config_info, one value for each rank that differs; "" where it does not say.
func (t *target) cacheInfo(label string) string {
	var values []string
	for _, labels := range t.page.Labels("vllm:cache_config_info") {
		if v := labels[label]; v != "" && (len(values) == 0 || values[len(values)-1] != v) {
			values = append(values, v)
		}
	}
	return strings.Join(values, " and ")
}
