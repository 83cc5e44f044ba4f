package main

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/pool"
	"github.com/tandem-serving/tandem/epp/replica"
	"github.com/tandem-serving/tandem/epp/scale"
	"github.com/tandem-serving/tandem/epp/scale/external"
	"github.com/tandem-serving/tandem/epp/scale/keda"
	"github.com/tandem-serving/tandem/epp/scale/leaving"
)

// scaling says where autoscalers ask for the sizes of the plugin replica-sizer.
type scaling struct {
	Address  string `flag:"scaler-address" arg:"HOST:PORT" help:"address where KEDA asks for the sizes of the plugin replica-sizer, by triggers of type external or external-push; usually :9006. Empty: none"`
	CertDir  string `flag:"scaler-cert-path" arg:"DIR" help:"directory with tls.crt and tls.key that KEDA is shown, read again when they change; empty: without TLS, as KEDA asks unless the trigger says enableTLS"`
	CA       string `flag:"scaler-client-ca" arg:"FILE" help:"authorities that must have signed the certificate of KEDA, read again when it changes; empty: KEDA needs no certificate"`
	External string `flag:"external-metrics-address" arg:"HOST:PORT" help:"address where the API server asks for the same sizes as external metrics, for HorizontalPodAutoscalers, over TLS; usually :9443. Empty: none"`
	Cert     string `flag:"external-metrics-cert-path" arg:"DIR" help:"directory with tls.crt and tls.key that the API server is shown, read again when they change; empty: self-signed"`
	Proxy    string `flag:"external-metrics-client-ca" arg:"FILE" help:"authorities that must have signed the certificate of the API server, read again when it changes: the requestheader-client-ca-file of the ConfigMap extension-apiserver-authentication. Empty: every client may read sizes"`
	Mark     bool   `flag:"mark-pods-to-go" help:"when a role is to become smaller, annotate its pods with the fewest requests and the coldest caches with controller.kubernetes.io/pod-deletion-cost, so that ReplicaSets delete them first. Needs endpoints of a cluster, the plugin replica-sizer, and the right to patch pods"`
}

// validate checks the flags. pods says that the endpoints are pods of a cluster.
func (s *scaling) validate(p *boot.Problems, pods bool) {
	discard := slog.New(slog.DiscardHandler)
	for _, port := range []struct{ address, cert, ca, flag, certFlag, caFlag string }{
		{s.Address, s.CertDir, s.CA, "scaler-address", "scaler-cert-path", "scaler-client-ca"},
		{s.External, s.Cert, s.Proxy, "external-metrics-address", "external-metrics-cert-path", "external-metrics-client-ca"},
	} {
		if port.address == "" {
			p.Require(port.cert == "", port.certFlag, "is of no use without --%s", port.flag)
			p.Require(port.ca == "", port.caFlag, "is of no use without --%s", port.flag)
			continue
		}
		p.RequireAddress(port.flag, port.address)
		if _, err := boot.ServerTLS(port.cert, "", discard); err != nil {
			p.Add(port.certFlag, "%w", err)
			continue
		}
		_, err := boot.ServerTLS(port.cert, port.ca, discard)
		p.Require(err == nil, port.caFlag, "%w", err)
	}
	p.Require(!s.Mark || pods, "mark-pods-to-go", uselessWithoutPods)
	p.Require(s.CA == "" || s.CertDir != "" || s.Address == "", "scaler-client-ca", "without --scaler-cert-path KEDA shows no certificate")
}

// makeScalers makes the servers that autoscalers ask.
func (p *process) makeScalers() error {
	s := &p.cfg.Scaling
	if p.ports.scaler != nil {
		var security credentials.TransportCredentials
		if s.CertDir != "" {
			secure, err := boot.ServerTLS(s.CertDir, s.CA, p.log)
			if err != nil {
				return err
			}
			secure.NextProtos = []string{"h2"}
			p.cfg.Listen.TLS.Apply(secure)
			security = credentials.NewTLS(secure)
		}
		p.scaler = keda.NewServer(p.picker.sizes, security)
	}
	if p.ports.external != nil {
		secure, err := boot.ServerTLS(s.Cert, s.Proxy, p.log)
		if err != nil {
			return err
		}
		p.cfg.Listen.TLS.Apply(secure)
		handler := external.Handler(external.Options{Source: p.picker.sizes, Namespace: p.picker.namespace, Now: time.Now})
		p.operations = append(p.operations, boot.Service{Name: "external-metrics", Listener: p.ports.external, Handler: handler, TLS: secure})
	}
	return nil
}

// serveScaler answers KEDA until the server is stopped.
func (p *process) serveScaler() error {
	if p.scaler == nil {
		<-p.drained
		return nil
	}
	return serveGRPC(p.scaler, p.ports.scaler, "scaler")
}

// sizes are those that the pickers of a pool agree on: the largest that any of them computes. It is a scale.Source.
type sizes struct {
	pool     *pool.Pool
	exchange *replica.Exchange // nil: there are no others, or they are not known

	mu      sync.Mutex
	sizer   sizer // nil: the configuration has none
	changed chan struct{}
}

// sizer is the plugin replica-sizer: a *scale.Sizer, or *scale.Variants.
type sizer interface {
	Notify(changed func())
	Wake()
	Sizes() []scale.Size
	SizedAs(e *epp.Endpoint) (role, variant string)
	Reused(e *epp.Endpoint) float64
}

func newSizes(pool *pool.Pool) *sizes { return &sizes{pool: pool, changed: make(chan struct{})} }

// use takes the sizes from the plugin of a configuration.
func (s *sizes) use(b *config.Built) {
	var plugin sizer
	for _, plugin = range config.Of[sizer](b) {
		break
	}
	s.mu.Lock()
	s.sizer = plugin
	s.mu.Unlock()
	if plugin != nil {
		plugin.Notify(s.computed)
	} else if s.exchange != nil {
		s.exchange.SetSizes(nil)
	}
	s.tell()
}

// computed tells the other pickers this one's sizes, and those who ask that they may have changed.
func (s *sizes) computed() {
	if own, err := s.own(); err == nil && s.exchange != nil {
		told := make(map[string]int, len(own))
		for i := range own {
			told[key(&own[i])] = own[i].Desired
		}
		s.exchange.SetSizes(told)
	}
	s.tell()
}

// wake has a pool that is scaled to zero start, because a request waits.
func (s *sizes) wake() {
	s.mu.Lock()
	plugin := s.sizer
	s.mu.Unlock()
	if plugin != nil {
		plugin.Wake()
	}
}

// key is what other pickers call a size.
func key(one *scale.Size) string { return one.Role + "/" + one.Variant }

// tell says that sizes may have changed.
func (s *sizes) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Changed implements scale.Source.
func (s *sizes) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

var (
	errNoSizer     = errors.New("sizes are not computed: the configuration of the picker has no plugin replica-sizer")
	errNoEndpoints = errors.New("sizes are not known yet: the picker has just started, and waits for its endpoints")
)

// own returns the sizes that this picker computes. Before it knows its endpoints it would take them for none.
func (s *sizes) own() ([]scale.Size, error) {
	select {
	case <-s.pool.Synced():
	default:
		return nil, errNoEndpoints
	}
	s.mu.Lock()
	plugin := s.sizer
	s.mu.Unlock()
	if plugin == nil {
		return nil, errNoSizer
	}
	return plugin.Sizes(), nil
}

// pods returns the pods of roles that are sized, with what they have to do: what pickers have sent them, or what their engines say, if that is more, such
// as just after a start of the picker.
func (s *sizes) pods() (all []leaving.Pod) {
	s.mu.Lock()
	plugin := s.sizer
	s.mu.Unlock()
	if plugin == nil {
		return nil
	}
	now := s.pool.Snapshot()
	at := map[string]int{} // index in all, by name
	for i, e := range now.Endpoints {
		role, variant := plugin.SizedAs(e)
		if role == "" || scale.Grouped(e) {
			continue // the controller of a LeaderWorkerSet has no choice
		}
		k, known := at[e.Pod]
		if !known {
			k = len(all)
			at[e.Pod] = k
			all = append(all, leaving.Pod{Role: role, Variant: variant, Name: e.Pod, Reused: plugin.Reused(e)})
		}
		running, _ := now.Loads[i].Signals.Value(epp.Running)
		waiting, _ := now.Loads[i].Signals.Value(epp.Waiting)
		all[k].Requests += max(e.InFlight().Requests, int(running+waiting))
	}
	return all
}

// Sizes implements scale.Source.
func (s *sizes) Sizes() ([]scale.Size, error) {
	all, err := s.own()
	if err == nil && s.exchange != nil {
		for i := range all {
			if most := s.exchange.Largest(key(&all[i]), all[i].Desired); most > all[i].Desired {
				all[i].Desired, all[i].Soon = most, most
			}
		}
	}
	return all, err
}
