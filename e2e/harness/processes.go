package harness

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Quantile sorts the durations and returns one of their quantiles; q is between 0 and 1.
func Quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[int(q*float64(len(d)-1))].Round(100 * time.Microsecond)
}

// LabelPair matches a label of a series, and its value.
var LabelPair = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)

// Holdings are the resources of a process at one moment.
type Holdings struct {
	RSS         int // MiB
	Descriptors int
	Goroutines  int // -1: unknown
	Own         int // MiB that Go's runtime has for it, without the race detector's; -1: unknown
}

func (h Holdings) String() string {
	text := fmt.Sprintf("%4d descriptors %4d MiB", h.Descriptors, h.RSS)
	if h.Goroutines >= 0 {
		text = fmt.Sprintf("%4d goroutines %s, %4d of them Go's", h.Goroutines, text, h.Own)
	}
	return text
}

// HoldingsOf reads the resources of a process: from Linux, and from the metrics page at an address, if there is one.
func HoldingsOf(t *testing.T, pid int, metrics string) Holdings {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	h := Holdings{RSS: int(memoryOf(t, pid, "VmRSS") >> 20), Descriptors: len(files), Goroutines: -1, Own: -1}
	if metrics != "" {
		h.Goroutines = int(Sample(t, metrics, "go_goroutines"))
		h.Own = int(Sample(t, metrics, "go_memstats_sys_bytes")-Sample(t, metrics, "go_memstats_heap_released_bytes")) >> 20
	}
	return h
}

// PeakOf returns the peak resident size of a process so far (MiB).
func PeakOf(t *testing.T, pid int) int {
	t.Helper()
	return int(memoryOf(t, pid, "VmHWM") >> 20)
}

// memoryOf returns a size that Linux reports for a process (bytes).
func memoryOf(t *testing.T, pid int, what string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if size, ok := strings.CutPrefix(line, what+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(size), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("process %d does not tell its %s", pid, what)
	return 0
}

// CPUOf returns the CPU time of a process, user and system. Linux counts it in hundredths of a second.
func CPUOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// ReadSeries returns the sum and the number of the series of a metric at an address.
func ReadSeries(addr, name string) (sum float64, n int, err error) {
	resp, err := Client.Get("http://" + addr + "/metrics")
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if family, _, _ := strings.Cut(series, "{"); family != name {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("reading metric %s: %w", name, err)
		}
		sum += v
		n++
	}
	return sum, n, nil
}

// SumOf returns the sum of the series of a metric, 0 if there are none yet.
func SumOf(t *testing.T, addr, name string) float64 {
	t.Helper()
	sum, _, err := ReadSeries(addr, name)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// AwaitSum waits until the series of a metric add up to want: some events are counted after the client has its answer.
func AwaitSum(t *testing.T, addr, name string, want float64) {
	t.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for ctx := Within(t); ; {
		got := SumOf(t, addr, name)
		if got == want {
			return
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("%s stays at %v: want %v", name, got, want)
		}
	}
}

// Sample reads a metric that always exists.
func Sample(t *testing.T, addr, name string) float64 {
	t.Helper()
	v, n, err := ReadSeries(addr, name)
	if err != nil || n != 1 {
		t.Fatalf("%s has %d series of metric %s, %v", addr, n, name, err)
	}
	return v
}
