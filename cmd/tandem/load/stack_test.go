package load

import (
	"os"
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/e2e/programs"
	"github.com/tandem-serving/tandem/stack"
)

// TestOnAStack measures a real picker, sidecar and gateway, with simulated engines: what the sidecar reports in headers and trailers
// arrives in the figures of each side.
func TestOnAStack(t *testing.T) {
	dir, err := programs.Build("epp", "sidecar", "sim", "keeper", "tandem")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	group, ctx := stack.NewGroup(t.Context())
	t.Cleanup(func() {
		if err := group.Stop(); err != nil {
			t.Error(err)
		}
	})
	up, err := stack.StartPD(ctx, group, stack.PDOptions{Dir: dir, Prefill: 1, Decode: 1, Threshold: 256, Proxy: stack.ProxyGateway, Keeper: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, api := range []string{"chat", "completions"} {
		t.Run(api, func(t *testing.T) {
			o := measure(t, ctx, "http://"+up.Proxy+"/v1", "--api="+api, "--compare=force,bypass", "--rate=40", "--requests=12", "--rounds=2",
				"--input-tokens=300-500", "--output-tokens=5-9", "--warmup=2")
			if o.code != boot.CodeOK {
				t.Fatalf("exit %d: %s", o.code, o.stderr)
			}
			remote, local := o.result.Points[0].Sides[0], o.result.Points[0].Sides[1]
			for _, side := range []SideResult{remote, local} {
				if side.Answered != 24 || side.TTFT == nil || side.ITL == nil || !side.TokensCounted || side.Model != "tiny" {
					t.Errorf("%+v", side)
				}
				// Prompts have the lengths that were asked for, by the engine's own count.
				if in, out := side.Input, side.Output; in == nil || in.Min < 290 || in.Max > 510 || out.Min < 5 || out.Max > 9 {
					t.Errorf("lengths %+v, %+v", in, out)
				}
				if cached := side.Cached; cached != nil && cached.Max > 64 {
					t.Errorf("%v tokens of a prompt were in a prefix cache", cached.Max)
				}
			}
			if remote.Phases["prefill"] == nil || remote.Phases["prefill"].Count != 24 || remote.remote() != 24 {
				t.Errorf("decisions %v, phases %v", remote.Decisions, remote.Phases)
			}
			// Of a stream that is served locally, the sidecar tells this phase in a trailer.
			if local.Phases["first"] == nil || local.Phases["first"].Count != 24 || local.Phases["prefill"] != nil || local.remote() != 0 {
				t.Errorf("decisions %v, phases %v", local.Decisions, local.Phases)
			}
		})
	}
}
