package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp/pool"
)

// kubeconfigOf writes a kubeconfig whose context has a namespace.
func kubeconfigOf(namespace string) string {
	return `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, namespace: "` + namespace + `"}}]
current-context: c
`
}

// TestNamespace: the flag comes first, then NAMESPACE as llm-d's charts set it, then the picker's own namespace.
func TestNamespace(t *testing.T) {
	for _, c := range []struct{ name, flag, env, home, want string }{
		{"by flag", "flag", "env", "home", "flag"},
		{"by environment", "", "env", "home", "env"},
		{"an empty environment", "", "", "home", "home"},
		{"nothing says", "", "", "", "default"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "kubeconfig")
			write(t, file, kubeconfigOf(c.home))
			from := endpoints{Pool: "p", Namespace: c.flag, Kubeconfig: file}
			options, err := from.options(func(key string) (string, bool) { return c.env, key == "NAMESPACE" })
			must(t, err)
			if options.Namespace != c.want || options.Config.Host != "https://127.0.0.1:1" || options.Pool != "p" || options.Selector != nil {
				t.Errorf("got %+v, want namespace %s", options, c.want)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	discovery := &pool.File{Path: "configured.yaml"}
	for _, c := range []struct {
		name      string
		from      endpoints
		discovery any
		want      string // path
		problem   string
	}{
		{"the configuration", endpoints{}, discovery, "configured.yaml", ""},
		{"a file", endpoints{File: "flag.yaml"}, nil, "flag.yaml", ""},
		{"a pool", endpoints{Pool: "p"}, nil, "", ""},
		{"a selector", endpoints{Selector: "a"}, nil, "", ""},
		{"nothing", endpoints{}, nil, "", "no source of endpoints is given"},
		{"a pool and the configuration", endpoints{Pool: "p"}, discovery, "", "file-discovery, and --pool-name is given too"},
		{"a file and the configuration", endpoints{File: "f"}, discovery, "", "file-discovery, and --endpoints-file is given too"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file, err := c.from.choose(c.discovery)
			if c.problem != "" {
				if err == nil || !strings.Contains(err.Error(), c.problem) {
					t.Errorf("got %v, want %s", err, c.problem)
				}
				return
			}
			if err != nil || file.Path != c.want {
				t.Errorf("got %+v, %v", file, err)
			}
		})
	}
}
