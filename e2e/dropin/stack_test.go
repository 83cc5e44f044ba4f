package dropin

import (
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/stack"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// read reads a file of testdata.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// startPicker runs the picker as llm-d's chart does, but for its ports and for how it finds pods: over TLS, with no flag of our own.
func startPicker(t *testing.T, f *harness.Fleet, flags ...string) {
	t.Helper()
	startPickerWith(t, f, read(t, "config.yaml"), flags...)
}

// startPickerWith is startPicker with another configuration.
func startPickerWith(t *testing.T, f *harness.Fleet, config string, flags ...string) {
	t.Helper()
	f.WriteConfig(t, config)
	what := stack.EPP(harness.BinDir, append([]string{"--config-file=" + f.Config, "--endpoints-file=" + f.Endpoints,
		"--zap-encoder=json", "--tracing=false"}, flags...)...)
	what.Args = slices.DeleteFunc(what.Args, func(arg string) bool { return strings.HasPrefix(arg, "--tandem-headers") })
	p := harness.Start(t, what)
	f.Pickers = append(f.Pickers, p)
	f.Eventually(t, "metrics pages", func() (string, bool) {
		state, err := harness.EndpointsOf(p)
		for _, e := range state.Endpoints {
			if e.LoadAge < 0 {
				return e.Name, false
			}
		}
		return "no endpoint", err == nil && len(state.Endpoints) > 0
	})
}

// startEnvoy runs llm-d's Envoy in front of the picker.
func startEnvoy(t *testing.T, f *harness.Fleet, trailers string) {
	t.Helper()
	envoy.Require(t)
	_, port, err := net.SplitHostPort(f.Pickers[0].Addr("extproc"))
	if err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("LISTENER", envoyconf.ListenerName, "TRAILERS", trailers, "PICKER_PORT", port)
	f.Front = harness.StartEnvoy(t, fill.Replace(read(t, "envoy.yaml")))
}

// newFleet starts engines and our sidecars: one decode pod and these prefill pods.
func newFleet(t *testing.T, prefills int) *harness.Fleet {
	t.Helper()
	f := harness.NewFleet(t, prefills, 0)
	e := harness.StartSim(t, "decode-0", "--role=decode")
	f.Decode = append(f.Decode, harness.DecodePod{Engine: e, Sidecar: harness.StartSidecar(t, e.Addr, "--kv-connector=nixlv2", "--secure-serving=false")})
	f.WriteEndpoints(t)
	return f
}

// startStack runs llm-d's Envoy in front of our picker and a fleet.
func startStack(t *testing.T, prefills int) *harness.Fleet {
	t.Helper()
	f := newFleet(t, prefills)
	startPicker(t, f)
	startEnvoy(t, f, "false")
	return f
}
