package services

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/connrotation"

	"github.com/tandem-serving/tandem/e2e/controlplane"
)

const (
	// Range has the addresses of Services; kube-apiserver must give them out of it (--service-cluster-ip-range). It keeps the
	// first 16 for those who ask for one of them, so none of them is given to a Service by chance.
	Range = controlplane.ServiceRange
	// DNS is the resolver's address, and APIServer the address of kube-apiserver's own Service.
	DNS, APIServer = "10.0.0.10", "10.0.0.1"
	// Domain is the suffix of all names of a cluster.
	Domain = "cluster.local"
)

// Services are running ones.
type Services struct {
	cancel   context.CancelFunc
	dialer   *connrotation.Dialer // to the API server
	factory  informers.SharedInformerFactory
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	changed  chan struct{} // holds one word of any number of changes
	resolver resolver
	names    *nameserver
	relay    *relay
	running  sync.WaitGroup
	troubles troubles
}

// Start makes Services and names work, in the network namespace of the process, until Stop. It returns when the API server's
// current ones work. ctx bounds the start only. The error says which part could not be set up, and why.
func Start(ctx context.Context, config *rest.Config) (*Services, error) {
	if err := ip("route", "add", "local", Range, "dev", "lo"); err != nil {
		return nil, fmt.Errorf("taking the addresses of Services (is this a network namespace without another cluster?): %w", err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Services{cancel: cancel, dialer: connrotation.NewDialer(new(net.Dialer).DialContext), changed: make(chan struct{}, 1)}
	s.relay = newRelay(running, &s.troubles)
	s.resolver.table.Store(newTable(nil, nil))
	if err := s.start(ctx, running, config); err != nil {
		return nil, errors.Join(fmt.Errorf("starting Services: %w", err), s.Stop())
	}
	return s, nil
}

func (s *Services) start(ctx, running context.Context, config *rest.Config) (err error) {
	if err := s.watch(config); err != nil {
		return err
	}
	if s.names, err = s.resolver.listen(running, netip.AddrPortFrom(netip.MustParseAddr(DNS), 53), &s.troubles); err != nil {
		return err
	}
	s.factory.StartWithContext(running)
	if err := s.factory.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
		return fmt.Errorf("reading Services and EndpointSlices: %w", err)
	}
	s.apply()
	s.running.Go(func() { s.follow(running) })
	return nil
}

// watch sets up what is watched, on connections of its own, so that Stop can end them.
func (s *Services) watch(config *rest.Config) error {
	config = rest.CopyConfig(config)
	config.Dial = s.dialer.DialContext
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("watching Services: %w", err)
	}
	s.factory = informers.NewSharedInformerFactory(client, 0)
	services, slices := s.factory.Core().V1().Services(), s.factory.Discovery().V1().EndpointSlices()
	s.services, s.slices = services.Lister(), slices.Lister()
	for _, informer := range []cache.SharedIndexInformer{services.Informer(), slices.Informer()} {
		tell := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { s.change() }, UpdateFunc: func(_, _ any) { s.change() },
			DeleteFunc: func(any) { s.change() }}
		if _, err := informer.AddEventHandler(tell); err != nil {
			return fmt.Errorf("watching Services: %w", err)
		}
		// Tests stop the API server. The watch retries until it is back, without an error.
		if err := informer.SetWatchErrorHandler(func(*cache.Reflector, error) {}); err != nil {
			return fmt.Errorf("watching Services: %w", err)
		}
	}
	return nil
}

func (s *Services) change() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *Services) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			s.apply()
		}
	}
}

// apply makes what is known true.
func (s *Services) apply() {
	services, err := s.services.List(labels.Everything())
	s.troubles.add(err)
	slices, err := s.slices.List(labels.Everything())
	s.troubles.add(err)
	t := newTable(services, slices)
	s.resolver.table.Store(t)
	s.relay.apply(t.fronts)
}

// Stop ends everything: connections break. The error has what went wrong since Start, such as a Service's port on which
// another program of the namespace listens.
func (s *Services) Stop() error {
	s.cancel()
	s.running.Wait()
	s.relay.stop()
	var err error
	if s.names != nil {
		err = s.names.stop()
	}
	if s.factory != nil {
		s.dialer.CloseAll()
		s.factory.Shutdown()
	}
	return errors.Join(s.troubles.err(), err, ip("route", "del", "local", Range, "dev", "lo"))
}

// ipTimeout bounds what takes milliseconds.
const ipTimeout = 30 * time.Second

// ip runs the program of that name, of iproute2. No context ends it: what it had done would be unknown.
func ip(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), ipTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
