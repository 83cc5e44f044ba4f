package netdev

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// put writes files below a folder, by their paths.
func put(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	for path, text := range files {
		path = filepath.Join(folder, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const interfaces = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1234 10 0 0 0 0 0 0 1234 10 0 0 0 0 0 0
  eth0: 5000000000 70 0 0 0 0 0 0 99 1 0 0 0 0 0 0
`

// counter is the file of a port of an RDMA device.
func counter(device string) string {
	return "class/infiniband/" + device + "/ports/1/counters/port_rcv_data"
}

// collected returns what a collector shows, as device and kind, with bytes.
func collected(t *testing.T, c *Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		if f.GetName() != Metric {
			t.Errorf("metric %s, want %s", f.GetName(), Metric)
		}
		for _, m := range f.GetMetric() {
			found[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
		}
	}
	return found
}

func TestCollector(t *testing.T) {
	c := &Collector{proc: t.TempDir(), sys: t.TempDir()}
	put(t, c.proc, map[string]string{"net/dev": interfaces})
	put(t, c.sys, map[string]string{counter("mlx5_0"): "1000000000\n", counter("broken"): "N/A (no PMA)\n"})
	want := map[string]float64{"eth0 ip": 5e9, "lo loopback": 1234, "mlx5_0/1 rdma": 4e9}
	if got := collected(t, c); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNothingToRead(t *testing.T) {
	if got := collected(t, &Collector{proc: t.TempDir(), sys: t.TempDir()}); len(got) > 0 {
		t.Errorf("got %v", got)
	}
}

// TestThisMachine: the kernel shows the devices of this process.
func TestThisMachine(t *testing.T) {
	if len(collected(t, New())) == 0 {
		t.Error("this machine shows no device")
	}
}
