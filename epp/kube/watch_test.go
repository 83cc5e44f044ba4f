package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
)

func TestOptions(t *testing.T) {
	engines := labels.SelectorFromSet(labels.Set{"app": "engine"})
	cases := []struct {
		name    string
		options Options
		want    string // of the error; "" = none
	}{
		{"a pool", Options{Pool: "p"}, ""},
		{"a pool of the older group", Options{Pool: "p", Group: AlphaGroup}, ""},
		{"a selector", Options{Selector: engines, TargetPorts: []int{8000, 8001}}, ""},
		{"no cluster", Options{Pool: "p"}, "nothing tells how to reach the cluster"},
		{"nothing", Options{}, "nothing tells which pods to watch: give a pool or a selector"},
		{"both", Options{Pool: "p", Selector: engines}, "a pool has its own selector: give either a pool or a selector"},
		{"a pool with ports", Options{Pool: "p", TargetPorts: []int{1}}, "a pool has its own target ports: give ports only with a selector"},
		{"a group without pools", Options{Pool: "p", Group: PolicyGroup}, `there is no InferencePool in the group "llm-d.ai"`},
		{"a selector of everything", Options{Selector: labels.Everything(), TargetPorts: []int{1}}, "the selector is empty"},
		{"no ports", Options{Selector: engines}, "the target ports cannot be used: there are 0, want 1 to 8"},
		{"nine ports", Options{Selector: engines, TargetPorts: []int{1, 2, 3, 4, 5, 6, 7, 8, 9}}, "there are 9, want 1 to 8"},
		{"no such CA", Options{Pool: "p", Config: &rest.Config{Host: "https://127.0.0.1", TLSClientConfig: rest.TLSClientConfig{CAFile: "nowhere"}}},
			"making a client of the cluster: "},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.options.Config == nil && c.name != "no cluster" {
				c.options.Config = &rest.Config{Host: "http://127.0.0.1"}
			}
			_, err := New(c.options)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestLoadConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	const text = "{clusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443'}}], contexts: [{name: x, context: {cluster: c, namespace: home}}], current-context: x}"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(t.TempDir(), "none")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, c := range []struct{ name, path, env, host string }{
		{"by path", file, missing, "https://192.0.2.1:6443"},
		{"by environment", "", file, "https://192.0.2.1:6443"},
		{"no such file", missing, file, ""},
		{"nothing", "", missing, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", c.env)
			config, home, err := LoadConfig(c.path)
			switch {
			case c.host == "" && (err == nil || !strings.Contains(err.Error(), "give --kubeconfig, set KUBECONFIG, or run in a pod")):
				t.Errorf("got %v, %v", config, err)
			case c.host != "" && (err != nil || config.Host != c.host || home != "home"):
				t.Errorf("got %v, namespace %q, %v", config, home, err)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	cases := []struct {
		name string
		err  error
		want string // reason and error; "" = none
	}{
		{"none", nil, ""},
		{"the end", fmt.Errorf("watching: %w", context.Canceled), ""},
		{"history is gone", apierrors.NewResourceExpired("too old"), ""},
		{"forbidden", apierrors.NewForbidden(pods, "", errors.New("no")), "forbidden pods is forbidden: no"},
		{"unauthorized", apierrors.NewUnauthorized("who"), "unauthorized who"},
		{"no such kind", apierrors.NewNotFound(pods, ""), `missing pods "" not found`},
		{"overload", apierrors.NewTooManyRequests("later", 1), "error later"},
		{"no connection", &url.Error{Op: "Get", URL: "https://a/very/long?address", Err: errors.New("refused")}, "unreachable refused"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if f := faultOf(c.err); f != nil {
				got = f.reason + " " + f.err.Error()
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestHandler(t *testing.T) {
	var seen []string
	h := handler(func(p *corev1.Pod) { seen = append(seen, "set "+p.Name) }, func(name string) { seen = append(seen, "remove "+name) })
	h.OnAdd(podOf("a", ""), true)
	h.OnUpdate(podOf("a", ""), podOf("b", ""))
	h.OnDelete(podOf("c", ""))
	h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "ns/d", Obj: podOf("d", "")}) // the watch has missed its end
	h.OnAdd(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "e"}}, false)
	if want := []string{"set a", "set b", "remove c", "remove d"}; !slices.Equal(seen, want) {
		t.Errorf("got %q, want %q", seen, want)
	}
}

// olderServer refuses to stream a list, as API servers do whose feature WatchList is off, and has watches fail with err.
type olderServer struct{ err error }

func (olderServer) List(metav1.ListOptions) (runtime.Object, error) { return &corev1.PodList{}, nil }

func (s olderServer) Watch(o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", nil)
	}
	return watch.NewFake(), s.err
}

// TestOlderAPIServer: that it does not stream lists is no fault, since it is asked for a list then.
func TestOlderAPIServer(t *testing.T) {
	for _, err := range []error{nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))} {
		told := make(chan *fault, 10)
		f := &follower{tell: func(broken *fault) { told <- broken }}
		f.opened(errors.New("of before"))
		<-told
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { f.informer(olderServer{err}, &corev1.Pod{}, 0, nil).RunWithContext(ctx) })
		if got, want := <-told, faultOf(err); (got == nil) != (want == nil) || got != nil && got.reason != want.reason {
			t.Errorf("with %v: first told of %+v", err, got)
		}
		stop()
		running.Wait()
	}
}

// TestTroublesOfPods: problems that are not listed are counted.
func TestTroublesOfPods(t *testing.T) {
	pods := newPodSet([]uint16{8000})
	for i := range 15 {
		pods.set(podOf(fmt.Sprintf("pod-%02d", i), "10.0.0.1", annotated(activePorts, "x")))
	}
	told := make(chan struct{})
	close(told)
	r := &run{Watch: &Watch{}, pods: &selected{follower: &follower{kind: podKind, ready: told}, podSet: pods}}
	var found problemSet
	r.complain(&found)
	if text := found.err().Error(); !strings.Contains(text, "ns/pod-09") || !strings.HasSuffix(text, " | and 5 more") {
		t.Errorf("got %s", text)
	}
}

func TestTroublesAreBounded(t *testing.T) {
	var found problemSet
	for i := range 15 {
		found.add(fmt.Sprint(i%12), fmt.Sprintf("trouble %d", i))
	}
	text := found.err().Error()
	if !strings.Contains(text, "trouble 9") || strings.Contains(text, "trouble 10") || !strings.HasSuffix(text, "and 2 more") {
		t.Errorf("got %s", text)
	}
}

func TestLibrariesAreQuiet(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(quiet{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})}).With("k", "v").WithGroup("g")
	log.Info("informed")
	log.Debug("debugged")
	log.Error("failed")
	if got := out.String(); strings.Contains(got, "informed") || strings.Contains(got, "debugged") || !strings.Contains(got, "level=WARN msg=failed k=v") {
		t.Errorf("got %s", got)
	}
	out.Reset()
	slog.New(quiet{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})}).Info("informed")
	if got := out.String(); !strings.Contains(got, "level=DEBUG msg=informed") {
		t.Errorf("got %s", got)
	}
}
