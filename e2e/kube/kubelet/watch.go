package kubelet

import (
	"context"
	"errors"
	"fmt"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Kinds of objects that volumes are made of.
const (
	configMapKind = "ConfigMap"
	secretKind    = "Secret"
)

// watch follows the pods of the node, and the objects that their volumes are made of. It returns when it knows them.
func (n *Node) watch(ctx context.Context) error {
	mine := informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.options.Name).String()
	})
	pods := informers.NewSharedInformerFactoryWithOptions(n.client, 0, mine)
	others := informers.NewSharedInformerFactory(n.client, 0)
	n.known = known{others.Core().V1().ConfigMaps().Lister(), others.Core().V1().Secrets().Lister()}
	for _, follow := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{pods.Core().V1().Pods().Informer(), on(n.see, n.miss)},
		{others.Core().V1().ConfigMaps().Informer(),
			on(func(o *corev1.ConfigMap) { n.refresh(configMapKind, o) }, func(*corev1.ConfigMap) {})},
		{others.Core().V1().Secrets().Informer(),
			on(func(o *corev1.Secret) { n.refresh(secretKind, o) }, func(*corev1.Secret) {})},
	} {
		if _, err := follow.informer.AddEventHandler(follow.handler); err != nil {
			return err
		}
	}
	for _, factory := range []informers.SharedInformerFactory{pods, others} {
		factory.Start(n.life.Done())
		n.tasks.Go(func() {
			<-n.life.Done()
			factory.Shutdown()
		})
		for kind, known := range factory.WaitForCacheSync(ctx.Done()) {
			if !known {
				return fmt.Errorf("learning all %v: %w", kind, errors.Join(context.Cause(ctx), context.Cause(n.life)))
			}
		}
	}
	return nil
}

// on makes a handler of functions for objects of one kind.
func on[T any](set, remove func(*T)) cache.ResourceEventHandler {
	seen := func(object any) {
		if o, ok := object.(*T); ok {
			set(o)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, object any) { seen(object) },
		DeleteFunc: func(object any) {
			if late, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = late.Obj
			}
			if o, ok := object.(*T); ok {
				remove(o)
			}
		},
	}
}

// see takes a pod as it is now.
func (n *Node) see(pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return
	}
	if w := n.workers[pod.UID]; w != nil {
		w.inbox.post(func() { w.see(pod) })
		return
	}
	w := newWorker(n, pod)
	n.workers[pod.UID] = w
	n.tasks.Go(w.loop)
}

// miss takes note that a pod is there no more.
func (n *Node) miss(pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.workers[pod.UID]; w != nil {
		w.inbox.post(func() { w.gone = true })
	}
}

// forget is the end of a worker.
func (n *Node) forget(w *worker) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.workers, w.ref.UID)
}

// refresh has the volumes made again that are made of an object which has changed.
func (n *Node) refresh(kind string, object metav1.Object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		if w.ref.Namespace == object.GetNamespace() {
			w.inbox.post(func() {
				if uses(w.pod, kind, object.GetName()) {
					w.filled = false
				}
			})
		}
	}
}

// known is what was last heard of objects, for the time without an API server.
type known struct {
	configMaps listers.ConfigMapLister
	secrets    listers.SecretLister
}

// configMap returns an object as it is now, or was when the API server could last be asked.
func (n *Node) configMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	object, err := n.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		if object, knownErr := n.known.configMaps.ConfigMaps(namespace).Get(name); knownErr == nil {
			return object, nil
		}
	}
	return object, short(err, "configmap", name)
}

// secret is like configMap.
func (n *Node) secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	object, err := n.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		if object, knownErr := n.known.secrets.Secrets(namespace).Get(name); knownErr == nil {
			return object, nil
		}
	}
	return object, short(err, "secret", name)
}

// short words the lack of an object as a kubelet does.
func short(err error, kind, name string) error {
	if apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(corev1.Resource(kind), name)
	}
	return err
}

// token asks for a token of the pod's service account, which dies with the pod.
func (n *Node) token(ctx context.Context, pod *corev1.Pod, audience string, seconds *int64) (token, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	request := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{ExpirationSeconds: seconds,
		BoundObjectRef: &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}}}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	account := or(pod.Spec.ServiceAccountName, "default")
	asked := time.Now()
	answer, err := n.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return token{}, fmt.Errorf("asking for a token of service account %s: %w", account, err)
	}
	// Renewed after four fifths of its time, as a kubelet does.
	return token{answer.Status.Token, asked.Add(answer.Status.ExpirationTimestamp.Sub(asked) / 5 * 4)}, nil
}

// sameMetadata reports whether two versions of a pod have the same labels and annotations.
func sameMetadata(a, b *corev1.Pod) bool {
	return equality.Semantic.DeepEqual(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Annotations, b.Annotations)
}
