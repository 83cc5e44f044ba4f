package stack_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/stack"
)

// requireNIXL skips the test if the library is missing.
func requireNIXL(t *testing.T) {
	t.Helper()
	switch library := stack.NIXLLibrary(); {
	case library != "":
	case os.Getenv("CI") == "true":
		t.Fatal("the NIXL library is missing: make .tools/nixl")
	default:
		t.Skip("the NIXL library is missing: make .tools/nixl fetches it, or TANDEM_NIXL_LIB names another")
	}
}

func page(t *testing.T, url string) string {
	t.Helper()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, resp.Status, err)
	}
	return string(text)
}

// awaitPage waits until a page has a line.
func awaitPage(t *testing.T, url, line string) {
	t.Helper()
	late, again := time.After(time.Minute), time.NewTicker(20*time.Millisecond)
	defer again.Stop()
	for {
		text := page(t, url)
		if strings.Contains(text, "\n"+line+"\n") {
			return
		}
		select {
		case <-again.C:
		case <-late:
			t.Fatalf("%s does not say %q:\n%s", url, line, text)
		}
	}
}

// TestPDWithKeepers: over either transport, keepers load the engines of their hand-offs, and KV moves.
func TestPDWithKeepers(t *testing.T) {
	for _, transport := range []string{stack.TransportTCP, stack.TransportNIXL} {
		t.Run(transport, func(t *testing.T) {
			if transport == stack.TransportNIXL {
				requireNIXL(t)
				if _, err := buildNIXL(); err != nil {
					t.Fatal(err)
				}
			}
			_, _, pd := startPD(t, stack.PDOptions{Prefill: 1, Decode: 1, Proxy: stack.ProxyGateway,
				SimFlags: []string{"--time-scale=0"}, Transport: transport, Keeper: true})
			metrics := "http://" + pd.Decode[0].SidecarMetrics + "/metrics"
			if !strings.Contains(page(t, metrics), "\ntandem_keeper_up 1\n") {
				t.Error("the stack is ready, and its keeper is not")
			}
			if got := decision(t, pd, 300, "force"); !strings.HasPrefix(got, "remote;reason=forced") {
				t.Errorf("forced: %q", got)
			}
			awaitPage(t, metrics, `tandem_lease_connects_total{result="ok"} 1`)
			var state sim.State
			if err := json.Unmarshal([]byte(page(t, "http://"+pd.Decode[0].EngineAdmin+"/sim/state")), &state); err != nil {
				t.Fatal(err)
			}
			if state.KVBytesRead == 0 || state.ForeignReads != 0 {
				t.Errorf("decode state %+v", state)
			}
		})
	}
}

func TestTransportErrors(t *testing.T) {
	dir := programsDir(t)
	empty := t.TempDir()
	for _, program := range []string{"epp", "sidecar", "tandem", "keeper", "sim"} {
		if err := os.Symlink(filepath.Join(dir, program), filepath.Join(empty, program)); err != nil {
			t.Fatal(err)
		}
	}
	static := t.TempDir() // in the place of those with NIXL
	if err := os.Symlink(dir, stack.NIXLDir(static)); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"epp", "sidecar", "tandem"} {
		if err := os.Symlink(filepath.Join(dir, program), filepath.Join(static, program)); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name, dir, transport string
		want                 []string
		noNIXL               bool
	}{
		{"no such transport", dir, "rdma", []string{`"rdma" is not a transport: want tcp or nixl`}, false},
		{"programs for it missing", empty, stack.TransportNIXL, []string{"nixl/keeper: no such file", "make nixl"}, true},
		{"programs without it", static, stack.TransportNIXL,
			[]string{"keeper: ", "built without it", "make nixl", "TANDEM_NIXL_LIB"}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g, alive := stack.NewGroup(t.Context())
			defer g.Stop()
			o := stack.PDOptions{Dir: test.dir, Decode: 1, Proxy: stack.ProxyGateway, Transport: test.transport}
			_, err := stack.StartPD(alive, g, o)
			contains(t, err, test.want...)
			if errors.Is(err, stack.ErrNoNIXL) != test.noNIXL {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Run("a keeper that ends at once", func(t *testing.T) {
		g, alive := stack.NewGroup(t.Context())
		defer g.Stop()
		keeper := filepath.Join(empty, "keeper")
		if err := errors.Join(os.Remove(keeper), os.WriteFile(keeper, []byte("#!/bin/sh\necho bad luck; exit 7\n"), 0o700)); err != nil {
			t.Fatal(err)
		}
		o := stack.PDOptions{Dir: empty, Decode: 1, Proxy: stack.ProxyGateway, Keeper: true}
		_, err := stack.StartPD(alive, g, o)
		contains(t, err, "waiting for the keeper of decode-0 sidecar: it ends again and again", "bad luck")
	})
	t.Run("no keeper", func(t *testing.T) {
		g, alive := stack.NewGroup(t.Context())
		defer g.Stop()
		if err := os.Remove(filepath.Join(empty, "keeper")); err != nil {
			t.Fatal(err)
		}
		_, err := stack.StartPD(alive, g, stack.PDOptions{Dir: empty, Decode: 1, Proxy: stack.ProxyGateway, Keeper: true})
		contains(t, err, filepath.Join(empty, "keeper"), "make build")
	})
}

func TestNIXLLibrary(t *testing.T) {
	t.Setenv("TANDEM_NIXL_LIB", "somewhere")
	if got := stack.NIXLLibrary(); got != "somewhere" {
		t.Errorf("%q, but the environment names another", got)
	}
	t.Setenv("TANDEM_NIXL_LIB", "")
	checkout := t.TempDir()
	library := filepath.Join(checkout, ".tools", "nixl", ".nixl_cu12.mesonpy.libs")
	inside := filepath.Join(checkout, "some", "component")
	for _, dir := range []string{library, inside} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(inside)
	if got := stack.NIXLLibrary(); got != library {
		t.Errorf("%q, want that of the checkout, %q", got, library)
	}
	if err := os.WriteFile(filepath.Join(inside, "go.mod"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := stack.NIXLLibrary(); got != "" {
		t.Errorf("%q belongs to another checkout", got)
	}
}

func TestTransportOfPrograms(t *testing.T) {
	tests := []struct {
		transport, library string
		keeper, sim        []string
	}{
		{stack.TransportTCP, "", []string{"--keeper=bin/keeper", "--keeper-transport=tcp"}, nil},
		{stack.TransportNIXL, "", []string{"--keeper=bin/nixl/keeper", "--keeper-transport=nixl"}, []string{"--transport=nixl"}},
		{stack.TransportNIXL, "lib", []string{"--keeper=bin/nixl/keeper", "--keeper-transport=nixl", "--keeper-library=lib"},
			[]string{"--transport=nixl", "--nixl-library=lib"}},
	}
	for _, test := range tests {
		if got := stack.KeeperFlags("bin", test.transport, test.library); !slices.Equal(got, test.keeper) {
			t.Errorf("sidecar: %q, want %q", got, test.keeper)
		}
		if got := stack.SimTransport(test.transport, test.library); !slices.Equal(got, test.sim) {
			t.Errorf("sim: %q, want %q", got, test.sim)
		}
	}
}
