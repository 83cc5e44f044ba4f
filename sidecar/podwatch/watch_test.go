package podwatch

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var llama = Pool{Group: Groups[0], Namespace: "serving", Name: "llama"}

const (
	pools   = poolsPath + "?metadata.name=llama"
	engines = podsPath + "?app=engine"
)

func TestPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.set(engines, podOf("a", "Running", "10.0.0.1", "fd00::1")+","+podOf("done", "Succeeded", "10.0.0.2"))
		w := c.watch(t, llama)
		expect(t, w, "after the list", "10.0.0.1 fd00::1")
		if err := w.Ready(); err != nil {
			t.Errorf("not ready: %v", err)
		}
		for _, step := range []struct{ when, kind, pod, want string }{
			{"a pod without an address", "ADDED", podOf("b", "Pending"), "10.0.0.1 fd00::1"},
			{"it has one, and is not ready", "MODIFIED", podOf("b", "Pending", "10.0.0.3"), "10.0.0.1 10.0.0.3 fd00::1"},
			{"a bookmark", "BOOKMARK", `{"metadata":{"resourceVersion":"9"}}`, "10.0.0.1 10.0.0.3 fd00::1"},
			{"it has failed", "MODIFIED", podOf("b", "Failed", "10.0.0.3"), "10.0.0.1 fd00::1"},
			{"a pod is deleted", "DELETED", podOf("a", "Running", "10.0.0.1", "fd00::1"), ""},
			{"its address has gone to another", "ADDED", podOf("c", "Running", "10.0.0.1"), "10.0.0.1"},
		} {
			c.send(t, engines, step.kind, step.pod)
			expect(t, w, step.when, step.want)
		}
		if i := slices.IndexFunc(c.asked, func(s string) bool { return !strings.HasPrefix(s, "Bearer secret ") }); i >= 0 {
			t.Errorf("a request without the token: %s", c.asked[i])
		}
	})
}

// A watch that ends is followed by a list, which has what was missed.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.set(engines, podOf("a", "Running", "10.0.0.1"))
		w := c.watch(t, llama)
		c.set(engines, podOf("b", "Running", "10.0.0.2"))
		c.end(t, engines)
		expect(t, w, "before the list", "10.0.0.1")
		time.Sleep(time.Second)
		synctest.Wait()
		expect(t, w, "after the list", "10.0.0.2")
		c.send(t, engines, "ERROR", `{"message":"too old resource version"}`)
		c.set(engines, podOf("c", "Running", "10.0.0.3"))
		time.Sleep(time.Minute)
		synctest.Wait()
		expect(t, w, "after a list that an error made necessary", "10.0.0.3")
	})
}

func TestSelectorChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.set(engines, podOf("a", "Running", "10.0.0.1"))
		w := c.watch(t, llama)
		c.refuse(podsPath, "wait")
		c.send(t, pools, "MODIFIED", poolOf("other"))
		expect(t, w, "while the new pods are not known", "10.0.0.1")
		c.set(podsPath+"?app=other", podOf("b", "Running", "10.0.0.2"))
		c.refuse(podsPath, "")
		time.Sleep(time.Minute)
		synctest.Wait()
		expect(t, w, "with the new selector", "10.0.0.2")
		c.send(t, pools, "MODIFIED", `{"metadata":{"name":"llama"},"spec":{"selector":{"matchLabels":{}}}}`)
		expect(t, w, "with a selector that would take every pod", "10.0.0.2")
	})
}

func TestPoolComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.set(pools, "")
		c.set(engines, podOf("a", "Running", "10.0.0.1"))
		w := c.watch(t, llama)
		expect(t, w, "without a pool", "")
		if err := w.Ready(); err == nil || !strings.Contains(err.Error(), "InferencePool serving/llama: there is no such InferencePool") {
			t.Errorf("Ready returns %v, want that there is no pool", err)
		}
		c.send(t, pools, "ADDED", poolOf("engine"))
		expect(t, w, "with a pool", "10.0.0.1")
		c.send(t, pools, "DELETED", poolOf("engine"))
		expect(t, w, "with a deleted pool", "")
		if err := w.Ready(); err != nil {
			t.Errorf("not ready although it is known that there are no pods: %v", err)
		}
	})
}

// Without a right, nothing is allowed and the reason is told once; a lost right changes nothing.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.set(engines, podOf("a", "Running", "10.0.0.1"))
		c.refuse(podsPath, `pods is forbidden: User "x" cannot list resource "pods"`)
		w := c.watch(t, llama)
		time.Sleep(time.Hour)
		synctest.Wait()
		expect(t, w, "without the right", "")
		if err := w.Ready(); err == nil || !strings.Contains(err.Error(), `403 Forbidden: pods is forbidden: User "x" cannot list resource "pods"`) {
			t.Errorf("Ready returns %v, want the API server's reason", err)
		}
		if got := strings.Count(c.log.String(), "level=WARN"); got != 1 {
			t.Errorf("%d warnings in an hour, want 1:\n%s", got, &c.log)
		}
		c.refuse(podsPath, "")
		time.Sleep(time.Minute)
		synctest.Wait()
		expect(t, w, "with the right", "10.0.0.1")
		c.refuse(podsPath, "gone again")
		c.end(t, engines)
		time.Sleep(time.Minute)
		synctest.Wait()
		expect(t, w, "when it is lost", "10.0.0.1")
		if err := w.Ready(); err != nil {
			t.Errorf("not ready any more: %v", err)
		}
	})
}

func TestOlderGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.set("/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/serving/inferencepools?metadata.name=llama",
			`{"metadata":{"name":"llama"},"spec":{"selector":{"app":"engine","tier":"prod"}}}`)
		c.set(podsPath+"?app=engine,tier=prod", podOf("a", "Running", "10.0.0.1"))
		expect(t, c.watch(t, Pool{Group: Groups[1], Namespace: "serving", Name: "llama"}), "after the list", "10.0.0.1")
	})
}

func TestParsePool(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"serving/llama", "serving/llama"},
		{"llama", "default/llama"},
		{"", ""},
		{"/llama", ""},
		{"serving/", ""},
		{"a/b/c", ""},
	} {
		pool, err := ParsePool(c.text)
		if c.want == "" && err == nil || c.want != "" && (err != nil || pool.String() != c.want || pool.Group != Groups[0]) {
			t.Errorf("%q is %+v, %v; want %q", c.text, pool, err, c.want)
		}
	}
}

func TestInCluster(t *testing.T) {
	dir := t.TempDir()
	env := func(key string) (string, bool) {
		value, ok := map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}[key]
		return value, ok
	}
	if _, err := InCluster(func(string) (string, bool) { return "", false }); err == nil || !strings.Contains(err.Error(), "KUBERNETES_SERVICE_HOST") {
		t.Errorf("outside a cluster: %v", err)
	}
	if _, err := inCluster(env, dir); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("without authorities: %v", err)
	}
	server := httptest.NewTLSServer(nil)
	server.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	write(t, filepath.Join(dir, "ca.crt"), string(authority))
	api, err := inCluster(env, dir)
	if err != nil || api.URL != "https://[fd00::1]:443" {
		t.Fatalf("got %s, %v", api.URL, err)
	}
	for _, token := range []string{"first", "second"} { // the kubelet replaces tokens
		write(t, filepath.Join(dir, "token"), token+"\n")
		if got, err := api.Token(); err != nil || got != token {
			t.Errorf("the token is %q, %v; want %q", got, err, token)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
