package doctor

import (
	"encoding/json"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/netdev"
)

// TestLinkSpeed: what the sums of an engine's transfers say about its link.
func TestLinkSpeed(t *testing.T) {
	for name, c := range map[string]struct {
		bytes, seconds, transfers float64
		want                      verdict
		seen                      string
	}{
		"two engines on an H100, over TCP": {937426944, 2.668992, 5, warn, "0.35 GB/s on average over 5 KV caches of 187 MB, as over TCP"},
		"RDMA":                             {167e6 * 100, 3.87, 100, ok, "4.32 GB/s on average over 100 KV caches of 167 MB"},
		"a probe":                          {65536, 0.01, 1, unknown, "too small to tell (0.07 MB on average)"},
		"nothing":                          {0, 0, 0, unknown, "has read no KV cache yet"},
	} {
		if got := linkSpeed(c.bytes, c.seconds, c.transfers); got.verdict != c.want || !strings.Contains(got.seen, c.seen) {
			t.Errorf("%s: %s %q, want %s %q", name, got.verdict, got.seen, c.want, c.seen)
		}
	}
}

// TestMeasureLinks: prompts cross the links of a pool, and of an endpoint without a sidecar nothing is measured.
func TestMeasureLinks(t *testing.T) {
	p := healthy()
	p.members[3].naked = true
	flags := p.start(t)
	p.loads(t, 4)
	got := doctor(t.Context(), append(flags, "--tokens=200,3000", "--rounds=2", "--json", "link")...)
	var r struct {
		Verdict verdict
		Links   []link
	}
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
		t.Fatalf("%v: exit %d: %s\n%s", err, got.code, got.stderr, got.stdout)
	}
	if got.code != boot.CodeFailed || r.Verdict != fail || len(r.Links) != 2 {
		t.Fatalf("exit %d, %s, %d links", got.code, r.Verdict, len(r.Links))
	}
	one := r.Links[0]
	if len(one.Lengths) != 2 || one.Verdict != unknown || one.Carrier != carrierUnknown {
		t.Fatalf("%+v", one)
	}
	for i, tokens := range []int{200, 3000} {
		if l := one.Lengths[i]; l.Tokens != tokens || l.TransferMs <= 0 || l.RemoteMs <= 0 || l.LocalMs <= 0 {
			t.Errorf("%+v", l)
		}
	}
	if one.BytesPerToken <= 0 || one.BytesPerSecond <= 0 || one.FirstMs <= 0 || !strings.Contains(one.Seen, "too small") {
		t.Errorf("%+v", one)
	}
	if two := r.Links[1]; two.Verdict != fail || !strings.Contains(two.Seen, "no header of a sidecar") {
		t.Errorf("%+v", two)
	}
	if got = doctor(t.Context(), append(flags, "links")...); got.code != boot.CodeUsage || !strings.Contains(got.stderr, `no "links"`) {
		t.Errorf("exit %d: %s", got.code, got.stderr)
	}
}

// TestLinkIsJudged: the line through two sizes, and what the devices of the pod have received.
func TestLinkIsJudged(t *testing.T) {
	eth, ib, lo := device{"eth0", netdev.IP}, device{"mlx5_0/1", netdev.RDMA}, device{"lo", netdev.Loopback}
	for name, c := range map[string]struct {
		seconds  [2]float64 // of 16 MB and of 160 MB
		devices  map[device]float64
		want     verdict
		carrier  string
		contains string
	}{
		"RDMA":          {[2]float64{0.003, 0.021}, map[device]float64{eth: 2e6, ib: 180e6}, ok, netdev.RDMA, "8.00 GB/s; RDMA over mlx5_0/1"},
		"silently TCP":  {[2]float64{0.05, 0.41}, map[device]float64{eth: 190e6, ib: 0}, warn, netdev.IP, "0.40 GB/s, TCP over eth0"},
		"fast TCP":      {[2]float64{0.003, 0.021}, map[device]float64{eth: 190e6}, warn, netdev.IP, "8.00 GB/s, TCP over eth0"},
		"one machine":   {[2]float64{0.05, 0.41}, map[device]float64{lo: 190e6}, warn, netdev.Loopback, "TCP on the loopback device"},
		"NVLink":        {[2]float64{0.002, 0.005}, map[device]float64{eth: 2e6, ib: 100}, ok, carrierOther, "48.00 GB/s; no network device"},
		"slow by what?": {[2]float64{0.05, 0.41}, nil, warn, carrierUnknown, "0.40 GB/s, as over TCP; not known what carries it"},
		"not counted":   {[2]float64{}, map[device]float64{eth: 190e6}, unknown, netdev.IP, "does not count its transfers"},
		"both count":    {[2]float64{0.003, 0.021}, map[device]float64{eth: 178e6, ib: 177e6}, ok, netdev.RDMA, "RDMA over mlx5_0/1"},
	} {
		var l link
		l.received(map[device]float64{eth: 7, ib: 7, lo: 7}, shifted(c.devices, 7))
		var all []crossing
		for i, bytes := range []float64{16e6, 160e6} {
			one := crossing{tokens: int(bytes / 1e5), bytes: bytes, took: time.Second}
			if c.seconds[i] > 0 {
				one.transfers, one.seconds = 1, c.seconds[i]
			}
			all = append(all, one)
		}
		l.sum(all, nil)
		l.judge()
		if l.Verdict != c.want || l.Carrier != c.carrier || !strings.Contains(l.Seen, c.contains) {
			t.Errorf("%s: %s %s %q", name, l.Verdict, l.Carrier, l.Seen)
		}
	}
	l := link{}
	l.sum([]crossing{{tokens: 100, bytes: 1e6, seconds: 0.003, transfers: 1}, {tokens: 1000, bytes: 1e7, seconds: 0.012, transfers: 1}}, nil)
	if math.Abs(l.BytesPerSecond-1e9) > 1 || math.Abs(l.LatencyMs-2) > 1e-6 || l.BytesPerToken != 1e4 {
		t.Errorf("%+v", l)
	}
}

// shifted adds a number to each value.
func shifted(all map[device]float64, by float64) map[device]float64 {
	shifted := map[device]float64{}
	for d, n := range all {
		shifted[d] = n + by
	}
	return shifted
}

// TestSidecarOfEndpoint: the one of the same pod, or else one on the same machine.
func TestSidecarOfEndpoint(t *testing.T) {
	f := &fleet{sidecars: []*operated{{name: "b", base: "http://10.0.0.2:9095"}, {name: "10.0.0.3:9095", base: "http://10.0.0.3:9095"}}}
	for name, c := range map[string]struct{ name, addr, want string }{
		"same pod": {"b", "10.0.0.9:8000", "b"}, "same machine": {"c", "10.0.0.3:8000", "10.0.0.3:9095"}, "none": {"d", "10.0.0.4:8000", ""},
	} {
		got := ""
		if s := f.sidecarOf(&target{name: c.name, addr: netip.MustParseAddrPort(c.addr)}); s != nil {
			got = s.name
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
