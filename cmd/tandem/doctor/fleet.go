package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp/pool"
	"github.com/tandem-serving/tandem/pd"
)

// fleet is what is looked at.
type fleet struct {
	how      *lookFlags
	parts    partFlags
	direct   direct
	reach    reach
	key      string
	roots    *x509.CertPool // nil: certificates are not verified
	targets  []*target
	pickers  []*picker
	sidecars []*operated
	cluster  *cluster // nil: not in a cluster
	onClose  []func()
}

// target is one endpoint: an engine, or the sidecar before it.
type target struct {
	name  string
	label string // value of the role label
	role  pd.Role
	addr  netip.AddrPort
	pod   *corev1.Pod // nil outside of clusters
	rank  int         // among the engines of the pod
	facts
}

func (t *target) String() string { return t.name }

// setRole reads the label. A value that nobody knows is no role.
func (t *target) setRole(label string) {
	t.label = label
	t.role, _ = pd.ParseRole(label)
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
	direct := newDirect()
	return &fleet{how: &s.Look, parts: s.Parts, key: key, roots: roots, direct: direct, reach: direct,
		onClose: []func(){direct.http.CloseIdleConnections}}, nil
}

// roots are the certificates to verify others by, nil for none.
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

// close ends idle connections.
func (f *fleet) close() {
	for _, end := range f.onClose {
		end()
	}
}

// fromFile takes the endpoints of a file.
func (f *fleet) fromFile(path string) error {
	specs, err := (&pool.File{Path: path}).Load()
	if err != nil {
		return boot.Configf("endpoints-file: %w", err)
	}
	for _, spec := range specs {
		t := &target{name: spec.Name, addr: spec.Addr}
		t.setRole(spec.Labels[pd.RoleLabel])
		f.targets = append(f.targets, t)
	}
	return nil
}

// readUp takes the addresses from the ready line of tandem up. What flags say goes first.
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
		return boot.Configf("up: %s does not begin with the ready line of tandem up (want its stdout: tandem up >FILE)", file)
	}
	for purpose, to := range map[string]*string{"http": &p.Proxy, "extproc": &p.ExtProc, "health": &p.Health, "metrics": &p.Metrics, "admin": &p.Admin} {
		if *to == "" {
			*to = ready.Addresses[purpose]
		}
	}
	return nil
}

// fromPicker takes the endpoints that a picker knows.
func (f *fleet) fromPicker(ctx context.Context) error {
	known, err := f.debugEndpoints(ctx)
	if err != nil {
		return boot.Missingf("asking the picker for its endpoints: %w (is it running, and is %s its admin address?)", err, f.parts.Admin)
	}
	for _, e := range known {
		addr, err := netip.ParseAddrPort(e.Address)
		if err != nil {
			return fmt.Errorf("reading the picker's endpoints: %w", err)
		}
		t := &target{name: e.shortName(), addr: addr}
		t.setRole(e.Labels[pd.RoleLabel])
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

// live are the endpoints that answer.
func (f *fleet) live() (live []*target) {
	for _, t := range f.targets {
		if t.alive == nil {
			live = append(live, t)
		}
	}
	return live
}

// of are the endpoints that answer and serve a stage.
func (f *fleet) of(role pd.Role) []*target {
	return slices.DeleteFunc(f.live(), func(t *target) bool { return !t.role.Has(role) })
}

// reach is how endpoints are asked.
type reach interface {
	client() *http.Client
	// url is that of a path at a port of the endpoint's pod.
	url(t *target, scheme string, port uint16, path string) string
	// dials tells whether connections that are not HTTP can be made.
	dials() bool
}

// direct asks endpoints at their addresses.
type direct struct{ http *http.Client }

func newDirect() direct {
	transport := &http.Transport{
		// Certificates are looked at by a check; the pages behind them are wanted in any case.
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, //nolint:gosec // see above
	}
	return direct{&http.Client{Transport: transport, CheckRedirect: noRedirect}}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func (d direct) client() *http.Client { return d.http }
func (d direct) dials() bool          { return true }
func (d direct) url(t *target, scheme string, port uint16, path string) string {
	return scheme + "://" + netip.AddrPortFrom(t.addr.Addr(), port).String() + path
}

// parallel runs f for every item at once, as far as machines like that.
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
