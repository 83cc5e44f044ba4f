package netdev

import (
	"bufio"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric is the name of the metric, in bytes. Its labels are device, and kind: one of the constants.
const Metric = "tandem_network_received_bytes_total"

// Kinds of devices.
const (
	Loopback = "loopback" // between processes of one network namespace
	IP       = "ip"       // TCP and UDP
	RDMA     = "rdma"     // ports of InfiniBand, RoCE and the like
)

// maxDevices is the most devices that are shown: those that have received most.
const maxDevices = 32

var received = prometheus.NewDesc("tandem_network_received_bytes_total",
	"Bytes that the network devices of this pod have received, by kind: ip, loopback, rdma. Pods may share an RDMA device, which then counts the bytes of all.",
	[]string{"device", "kind"}, nil)

// Collector is a prometheus.Collector.
type Collector struct{ proc, sys string }

// New makes the collector of this process. Where the kernel is not Linux, it shows nothing.
func New() *Collector { return &Collector{proc: "/proc", sys: "/sys"} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) { to <- received }

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	all := append(c.interfaces(), c.ports()...)
	slices.SortStableFunc(all, func(a, b device) int { return cmp.Compare(b.bytes, a.bytes) })
	for _, d := range all[:min(maxDevices, len(all))] {
		to <- prometheus.MustNewConstMetric(received, prometheus.CounterValue, float64(d.bytes), d.name, d.kind)
	}
}

// device is what one device, or port, has received.
type device struct {
	name, kind string
	bytes      uint64
}

// interfaces returns those of the network namespace, as proc_pid_net(5) describes the file; none if it cannot be read.
func (c *Collector) interfaces() (all []device) {
	file, err := os.Open(filepath.Join(c.proc, "net/dev"))
	if err != nil {
		return nil
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, columns, ok := strings.Cut(lines.Text(), ":")
		fields := strings.Fields(columns)
		if !ok || len(fields) == 0 {
			continue // a heading
		}
		bytes, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil {
			continue
		}
		kind, name := IP, strings.TrimSpace(name)
		if name == "lo" {
			kind = Loopback
		}
		all = append(all, device{name, kind, bytes})
	}
	return all
}

// wordBytes is the unit of a port's counter of data (Linux: Documentation/ABI/stable/sysfs-class-infiniband).
const wordBytes = 4

// ports returns the ports of RDMA devices, without those that do not count.
func (c *Collector) ports() (all []device) {
	const pattern = "class/infiniband/*/ports/*/counters/port_rcv_data"
	files, _ := filepath.Glob(filepath.Join(c.sys, pattern)) // the pattern is valid
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		words, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			continue
		}
		port := filepath.Dir(filepath.Dir(file))
		name := filepath.Base(filepath.Dir(filepath.Dir(port))) + "/" + filepath.Base(port)
		all = append(all, device{name, RDMA, words * wordBytes})
	}
	return all
}
