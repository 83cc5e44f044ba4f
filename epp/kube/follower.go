package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Why a watch does not run.
const (
	faultUnreachable  = "unreachable"  // the API server does not answer
	faultUnauthorized = "unauthorized" // it does not accept the credentials
	faultForbidden    = "forbidden"    // RBAC
	faultMissing      = "missing"      // the cluster does not have the kind
	faultOther        = "error"        // any other error
)

// fault is why a watch does not run.
type fault struct {
	reason string
	err    error
}

// faultOf returns why opening a watch failed; nil if it worked, or if the error says nothing about later attempts.
func faultOf(err error) *fault {
	switch {
	case err == nil, errors.Is(err, context.Canceled), apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return nil
	case apierrors.IsForbidden(err):
		return &fault{faultForbidden, err}
	case apierrors.IsUnauthorized(err):
		return &fault{faultUnauthorized, err}
	case apierrors.IsNotFound(err):
		return &fault{faultMissing, err}
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		return &fault{faultOther, err}
	}
	if asked := (*url.Error)(nil); errors.As(err, &asked) {
		err = asked.Err // without the URL, which is long
	}
	return &fault{faultUnreachable, err}
}

// follower follows the objects of one kind until its context ends. client-go reopens a watch that ends, lists again when the
// history is gone, and retries after a failure, first after 1 s and later after at most a minute.
type follower struct {
	kind  kind
	stop  context.CancelFunc
	ready chan struct{} // closed when all initial objects have been delivered
	tell  func(*fault)  // called when fault changes

	mu    sync.Mutex
	fault *fault
}

// only limits the watch to the namespace. controller-runtime requests just that namespace if the field selector has it; its
// own option for namespaces leaks goroutines if a watch is stopped before it ran.
func (w *Watch) only(by cache.ByObject) cache.ByObject {
	namespace := fields.OneTermEqualSelector("metadata.namespace", w.options.Namespace)
	if by.Field == nil {
		by.Field = namespace
	} else {
		by.Field = fields.AndSelectors(namespace, by.Field)
	}
	return by
}

// follow starts a follower. work waits for its goroutines, which end with ctx or stop.
func (w *Watch) follow(ctx context.Context, work *sync.WaitGroup, k kind, by cache.ByObject,
	to toolscache.ResourceEventHandler) (*follower, error) {
	f := &follower{kind: k, ready: make(chan struct{}), tell: func(broken *fault) {
		w.metrics.fault(k, broken)
		w.wake()
	}}
	objects, err := cache.New(w.config, cache.Options{
		HTTPClient:               w.client,
		Scheme:                   k.scheme(),
		Mapper:                   k.mapper(),
		ByObject:                 map[client.Object]cache.ByObject{k.object: w.only(by)},
		NewInformer:              f.informer,
		DefaultWatchErrorHandler: func(context.Context, *toolscache.Reflector, error) {}, // opened records the error
	})
	if err != nil {
		return nil, fmt.Errorf("preparing to watch %v: %w", k, err)
	}
	informer, err := objects.GetInformer(ctx, k.object, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("preparing to watch %v: %w", k, err)
	}
	delivered, err := informer.AddEventHandler(to)
	if err != nil {
		return nil, fmt.Errorf("preparing to watch %v: %w", k, err)
	}
	ctx, f.stop = context.WithCancel(ctx)
	work.Go(func() { _ = objects.Start(ctx) }) // returns an error only if it was started before
	work.Go(func() {
		select {
		case <-ctx.Done():
		case <-delivered.HasSyncedChecker().Done():
			close(f.ready)
			w.wake()
		}
	})
	return f, nil
}

// informer makes client-go's informer, and records the results of its requests.
func (f *follower) informer(from toolscache.ListerWatcher, of runtime.Object, _ time.Duration,
	by toolscache.Indexers) toolscache.SharedIndexInformer {
	inner := toolscache.ToListerWatcherWithContext(from)
	return toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := inner.ListWithContext(ctx, o)
			if err != nil { // success is not yet a watch
				f.opened(err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			stream, err := inner.WatchWithContext(ctx, o)
			if o.SendInitialEvents == nil || !apierrors.IsInvalid(err) { // older API servers refuse this, and get a list request instead
				f.opened(err)
			}
			if o.SendInitialEvents != nil && utilnet.IsConnectionRefused(err) {
				// For this error the reflector would wait for its next try without checking whether it must end; for others
				// it checks.
				err = errors.New(err.Error())
			}
			return stream, err
		},
	}, of, 0, by)
}

// opened records the result of a request.
func (f *follower) opened(err error) {
	next := faultOf(err)
	if err != nil && next == nil {
		return
	}
	f.mu.Lock()
	before := f.fault
	f.fault = next
	f.mu.Unlock()
	if before != next {
		f.tell(next)
	}
}

// state returns why the follower does not run now, and whether it has reported the initial objects.
func (f *follower) state() (*fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.ready:
		return f.fault, true
	default:
		return f.fault, false
	}
}

// has reports whether the follower's objects can be used: the kind exists, and its objects were reported.
func (f *follower) has() bool {
	broken, told := f.state()
	return told && (broken == nil || broken.reason != faultMissing)
}

// settled reports whether the follower has reported the initial objects, or why it cannot for a while.
func (f *follower) settled() bool {
	broken, told := f.state()
	return told || broken != nil && (broken.reason == faultMissing || broken.reason == faultForbidden)
}

// handler calls set with objects that are new or changed, and remove with the names of deleted ones.
func handler[T client.Object](set func(T), remove func(name string)) toolscache.ResourceEventHandler {
	given := func(object any) {
		if o, ok := object.(T); ok {
			set(o)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    given,
		UpdateFunc: func(_, object any) { given(object) },
		DeleteFunc: func(object any) {
			if missed, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = missed.Obj
			}
			if o, ok := object.(T); ok {
				remove(o.GetName())
			}
		},
	}
}
