package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool"
	"github.com/tandem-serving/tandem/pd"
)

// fleet is the pool under inspection and its parts.
type fleet struct {
	how      *lookFlags
	parts    partFlags
	direct   direct
	reach    reach
	key      string
	roots    *x509.CertPool    // nil: certificates are not verified
	shown    []tls.Certificate // to servers that ask for one; nil: none
	targets  []*target
	pickers  []*picker
	sidecars []*operated
	cluster  *cluster // nil: not in a cluster
	onClose  []func()
}

// target is one endpoint: an engine, or the sidecar in front of it.
type target struct {
	name  string
	label string // value of the role label
	role  pd.Role
	addr  netip.AddrPort
	pod   *corev1.Pod  // nil outside of clusters
	rank  int          // among the engines of the pod
	told  epp.KVTraits // by its labels
	facts
}

func (t *target) String() string { return t.name }

// setLabels reads the labels. An unknown role is none.
func (t *target) setLabels(labels map[string]string) {
	t.label = labels[pd.RoleLabel]
	t.role, _ = pd.ParseRole(t.label)
	t.told = epp.LabelTraits(labels)
}

func newFleet(s *settings) (*fleet, error) {
	key, err := s.Look.key()
	if err != nil {
		return nil, boot.Configf("api-key-file: %w", err)
	}
	roots, err := s.Look.roots()
	if err != nil {
		return nil, boot.Configf("ca-file: %w", err)
	}
	shown, err := s.Look.shown()
	if err != nil {
		return nil, boot.Configf("client-cert-path: %w", err)
	}
	direct := newDirect(shown...)
	return &fleet{how: &s.Look, parts: s.Parts, key: key, roots: roots, shown: shown, direct: direct, reach: direct,
		onClose: []func(){direct.http.CloseIdleConnections}}, nil
}

// roots returns the certificate authorities to verify servers by, or nil for none.
func (l *lookFlags) roots() (*x509.CertPool, error) {
	if l.CAFile == "" {
		return nil, nil
	}
	data, err := os.ReadFile(l.CAFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s has no certificate", l.CAFile)
	}
	return roots, nil
}

// shown returns the certificate to show to servers, or nil for none.
func (l *lookFlags) shown() ([]tls.Certificate, error) {
	if l.CertDir == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(l.CertDir, "tls.crt"), filepath.Join(l.CertDir, "tls.key"))
	if err != nil {
		return nil, err
	}
	return []tls.Certificate{pair}, nil
}

// secure returns the TLS setup of connections to servers of whatever certificate: a check verifies them, to tell what is wrong.
func secure(shown []tls.Certificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, Certificates: shown} //nolint:gosec // see above
}

// close ends idle connections.
func (f *fleet) close() {
	for _, end := range f.onClose {
		end()
	}
}

// fromFile takes the endpoints from a file.
func (f *fleet) fromFile(path string) error {
	specs, err := (&pool.File{Path: path}).Load()
	if err != nil {
		return boot.Configf("endpoints-file: %w", err)
	}
	for _, spec := range specs {
		t := &target{name: spec.Name, addr: spec.Addr}
		t.setLabels(spec.Labels)
		f.targets = append(f.targets, t)
	}
	return nil
}

// readUp takes the addresses from the ready line of tandem up. Flags have precedence.
func (p *partFlags) readUp(std boot.IO, file string) error {
	var data []byte
	var err error
	if file == "-" {
		data, err = io.ReadAll(io.LimitReader(std.Stdin, pool.MaxFileSize))
	} else {
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return boot.Configf("up: %w", err)
	}
	var ready struct {
		Ready     string
		Addresses map[string]string
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	if err := json.Unmarshal(line, &ready); err != nil || ready.Ready != "up" {
		return boot.Configf("up: %s does not begin with the ready line of tandem up (save its stdout: tandem up >FILE)", file)
	}
	for purpose, to := range map[string]*string{"http": &p.Proxy, "extproc": &p.ExtProc, "health": &p.Health, "metrics": &p.Metrics, "admin": &p.Admin} {
		if *to == "" {
			*to = ready.Addresses[purpose]
		}
	}
	for purpose, to := range map[string]*[]string{boot.SideChannelAddress: &p.Side, boot.SidecarMetricsAddress: &p.Sidecars} {
		if len(*to) > 0 {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(ready.Addresses)) {
			if strings.HasSuffix(key, boot.PodAddress("", purpose)) {
				*to = append(*to, ready.Addresses[key])
			}
		}
	}
	return nil
}

// fromPicker takes the endpoints from a picker's admin port.
func (f *fleet) fromPicker(ctx context.Context) error {
	known, err := f.debugEndpoints(ctx)
	if err != nil {
		return boot.Missingf("reading the picker's endpoints: %w (is it running, and is %s its admin address?)", err, f.parts.Admin)
	}
	for _, e := range known {
		addr, err := netip.ParseAddrPort(e.Address)
		if err != nil {
			return fmt.Errorf("reading the picker's endpoints: %w", err)
		}
		t := &target{name: e.shortName(), addr: addr}
		t.setLabels(e.Labels)
		f.targets = append(f.targets, t)
	}
	return nil
}

// addPicker adds the picker that flags or a ready line name.
func (f *fleet) addPicker() {
	p := &picker{name: "the picker", extproc: f.parts.ExtProc, health: f.parts.Health, metrics: f.parts.Metrics, admin: f.parts.Admin}
	if p.extproc != "" || p.health != "" || p.metrics != "" || p.admin != "" {
		f.pickers = append(f.pickers, p)
	}
}

// live returns the endpoints that answer.
func (f *fleet) live() (live []*target) {
	for _, t := range f.targets {
		if t.alive == nil {
			live = append(live, t)
		}
	}
	return live
}

// of returns the endpoints that answer and serve a stage.
func (f *fleet) of(role pd.Role) []*target {
	return slices.DeleteFunc(f.live(), func(t *target) bool { return !t.role.Has(role) })
}

// reach is the way to endpoints.
type reach interface {
	client() *http.Client
	// url returns the URL of a path at a port of the endpoint's pod.
	url(t *target, scheme string, port uint16, path string) string
	// dials reports whether connections that are not HTTP can be made.
	dials() bool
}

// direct reaches endpoints at their addresses.
type direct struct{ http *http.Client }

func newDirect(shown ...tls.Certificate) direct {
	return direct{&http.Client{Transport: &http.Transport{TLSClientConfig: secure(shown)}, CheckRedirect: noRedirect}}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func (d direct) client() *http.Client { return d.http }
func (d direct) dials() bool          { return true }
func (d direct) url(t *target, scheme string, port uint16, path string) string {
	return scheme + "://" + netip.AddrPortFrom(t.addr.Addr(), port).String() + path
}

// parallel runs f for every item, with a bounded number of goroutines.
func parallel[T any](items []T, f func(T)) {
	places := make(chan struct{}, 64)
	var running sync.WaitGroup
	for _, item := range items {
		running.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			f(item)
		})
	}
	running.Wait()
}

// facts are what an endpoint shows of itself.
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
	info       serverInfo // zero if the engine does not show it
	sg         sglangInfo // zero if it is no SGLang
}

// model is an entry of /v1/models.
type model struct {
	ID          string `json:"id"`
	Root        string `json:"root"`
	MaxModelLen int    `json:"max_model_len"`
	Owner       string `json:"owned_by"`
}

// serverInfo has the arguments that vLLM shows in developer mode.
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

// look reads everything that the checks need, from all endpoints and parts in parallel.
func (f *fleet) look(ctx context.Context) {
	parallel(f.targets, func(t *target) { f.meet(ctx, t) })
	parallel(f.pickers, func(p *picker) { f.meetPicker(ctx, p) })
	parallel(f.sidecars, func(s *operated) { f.meetSidecar(ctx, s) })
}

// meet reads the pages of one endpoint, the others only if it answers /health.
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
		func(ctx context.Context) { t.page, t.pageErr = f.engines().engineMetrics(ctx, f.base(t)) },
		func(ctx context.Context) { t.info = f.serverInfo(ctx, t) },
	}, func(look func(context.Context)) { within(look) })
	if t.sglang() {
		f.meetSGLang(ctx, t)
		if t.sg.version != "" {
			t.version, t.versionErr = t.sg.version, nil
		}
	}
}

// base returns the URL of an endpoint, without a path.
func (f *fleet) base(t *target) string { return f.reach.url(t, t.scheme, t.addr.Port(), "") }

// greet requests /health in plaintext and, if that is not spoken there, over TLS.
func (f *fleet) greet(ctx context.Context, t *target) {
	t.scheme = "http"
	a, err := f.engines().ask(ctx, http.MethodGet, f.base(t)+"/health", nil, "")
	if err != nil && !refused(err) || err == nil && bytes.Contains(a.body, []byte("HTTPS server")) { // the answer of a Go server on its TLS port
		t.scheme = "https"
		if over, tlsErr := f.engines().ask(ctx, http.MethodGet, f.base(t)+"/health", nil, ""); tlsErr == nil {
			a, err = over, nil
		} else {
			t.scheme = "http" // the answer over plaintext says more
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
		err = errors.New("its /version has no version")
	}
	return v.Version, err
}

// serverInfo is empty for engines that do not show it, which is no fault.
func (f *fleet) serverInfo(ctx context.Context, t *target) (info serverInfo) {
	if err := f.engines().getJSON(ctx, f.base(t)+"/server_info?config_format=json", &info); err != nil {
		info = serverInfo{}
	}
	info.fromPod(t.pod)
	return info
}

// vllm reports whether the metrics page is that of a vLLM or its simulation.
func (t *target) vllm() bool { return t.page.Has("vllm:") }

// trtllm reports whether the page, or the list of models, is that of an engine of TensorRT-LLM. Its page is there only if it was asked for.
func (t *target) trtllm() bool {
	return t.page.Has("trtllm_") || len(t.models) > 0 && t.models[0].Owner == "tensorrt_llm"
}

// Gauges of the tokens in a KV block, on pages that have it in no label.
const (
	sglangBlock = "sglang:page_size"
	trtllmBlock = "trtllm_kv_cache_tokens_per_block"
)

// cacheInfo returns a label of the page's cache_config_info, one value for each rank that differs; "" if the page has none. The pages of SGLang and
// TensorRT-LLM have the length of a block in a gauge of its own.
func (t *target) cacheInfo(label string) string {
	var values []string
	if label == blockLabel && !t.vllm() {
		for _, s := range t.page {
			if s.Name != sglangBlock && s.Name != trtllmBlock {
				continue
			}
			if v := strconv.FormatFloat(s.Value, 'f', -1, 64); !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
		return strings.Join(values, " and ")
	}
	for _, labels := range t.page.Labels("vllm:cache_config_info") {
		if v := labels[label]; v != "" && (len(values) == 0 || values[len(values)-1] != v) {
			values = append(values, v)
		}
	}
	return strings.Join(values, " and ")
}
