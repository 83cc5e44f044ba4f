package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tandem-serving/tandem/epp"
)

// Options say what a Watch follows. Either Pool is set, or Selector with TargetPorts.
type Options struct {
	Namespace string // of all objects; "" = default
	Pool      string // name of the InferencePool
	Group     string // of the InferencePool: PoolGroup, also if "", or AlphaGroup
	// Selector selects the pods without a pool. Only pods are followed then: there are no objectives or rewrites.
	Selector    labels.Selector
	TargetPorts []int                 // 1 to 8, each an endpoint of every pod
	Config      *rest.Config          // of the cluster: LoadConfig finds it
	Log         *slog.Logger          // nil: nothing is logged
	Metrics     prometheus.Registerer // nil: metrics are not registered
}

// LoadConfig returns the configuration of the cluster: from a kubeconfig file, or with path "" as kubectl does ($KUBECONFIG,
// then the file in the home folder), or, if there is no such file, that of a pod in the cluster. home is the namespace of the
// file's context or of the pod, default if neither has one.
func LoadConfig(path string) (config *rest.Config, home string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	cluster := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	if config, err = cluster.ClientConfig(); err == nil {
		home, _, err = cluster.Namespace()
	}
	if err != nil {
		return nil, "", fmt.Errorf("finding the cluster: %w (give --kubeconfig, set KUBECONFIG, or run in a pod)", err)
	}
	return config, home, nil
}

// Watch follows a pool in a cluster. Its methods are safe for concurrent use.
type Watch struct {
	options Options
	fixed   *target // selector mode
	config  *rest.Config
	client  *http.Client
	metrics *metrics
	changed chan struct{} // holds one: something has changed since the last check
	synced  chan struct{} // closed: endpoints and policy are known

	policy    atomic.Pointer[epp.Policy]
	trouble   atomic.Pointer[error] // nil: none
	following atomic.Bool           // everything is known, and every watch runs
	podSet    atomic.Pointer[podSet]

	running sync.Mutex // held by Run
}

// New prepares a Watch, without a request to the cluster. The error says which option is wrong.
func New(options Options) (*Watch, error) {
	options.Namespace = cmp.Or(options.Namespace, "default")
	options.Group = cmp.Or(options.Group, PoolGroup)
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	fixed, err := options.check()
	if err != nil {
		return nil, err
	}
	config := rest.CopyConfig(options.Config)
	config.UserAgent = "tandem-epp"
	config.Timeout = 0 // watches have no end
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the cluster: %w", err)
	}
	quieten(options.Log)
	w := &Watch{options: options, fixed: fixed, config: config, client: client,
		changed: make(chan struct{}, 1), synced: make(chan struct{})}
	w.metrics = newMetrics(w, options.Metrics)
	return w, nil
}

// check returns the target if the options have no pool.
func (o *Options) check() (fixed *target, err error) {
	switch {
	case o.Config == nil:
		return nil, errors.New("nothing tells how to reach the cluster: give a config")
	case o.Pool == "" && o.Selector == nil:
		return nil, errors.New("nothing tells which pods to watch: give a pool or a selector")
	case o.Pool != "" && o.Selector != nil:
		return nil, errors.New("a pool has its own selector: give either a pool or a selector")
	case o.Pool != "" && len(o.TargetPorts) > 0:
		return nil, errors.New("a pool has its own target ports: give ports only with a selector")
	case o.Pool != "" && o.Group != PoolGroup && o.Group != AlphaGroup:
		return nil, fmt.Errorf("there is no InferencePool in the group %q: want %s or %s", o.Group, PoolGroup, AlphaGroup)
	case o.Pool != "":
		return nil, nil
	case o.Selector.Empty():
		return nil, fmt.Errorf("the %w", errEmptySelector)
	}
	ports, err := portsOf(o.TargetPorts)
	if err != nil {
		return nil, fmt.Errorf("the target ports cannot be used: %w", err)
	}
	return &target{o.Selector, ports}, nil
}

// Run follows the pool until ctx ends, and calls apply from one goroutine: first when everything is known, and then whenever
// the endpoints change. It may be called again after it has returned. The error is that of a configuration with which no
// request can be made.
func (w *Watch) Run(ctx context.Context, apply func([]epp.Spec)) error {
	w.running.Lock()
	defer w.running.Unlock()
	r := &run{Watch: w, apply: apply}
	defer w.client.CloseIdleConnections()
	defer r.work.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer w.following.Store(false)
	if err := r.start(ctx); err != nil {
		return err
	}
	return r.loop(ctx)
}

// Trouble returns what is missing, or why the endpoints and the policy may differ from the cluster's, and what to do; nil if
// nothing is wrong.
func (w *Watch) Trouble() error {
	if err := w.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// Policy returns the current policy: nil before it is known, and in selector mode.
func (w *Watch) Policy() *epp.Policy { return w.policy.Load() }

// Synced returns a channel that is closed when endpoints and policy are known.
func (w *Watch) Synced() <-chan struct{} { return w.synced }

// wake makes the loop check everything.
func (w *Watch) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}
