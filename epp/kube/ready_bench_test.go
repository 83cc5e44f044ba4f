package kube

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/epp"
)

// BenchmarkReadyToCandidate has a real API server tell of one pod in 2,000 that becomes ready, or no longer is: the time from
// the end of the request that says so until the pool is applied, and the heap that a pod takes.
func BenchmarkReadyToCandidate(b *testing.B) {
	const pods, writers = 2000, 16
	c := startCluster(b)
	c.InstallCRDs("testdata/crds/*.yaml")
	config := c.namespace(b, "bench")
	c.apply(b, "bench", poolYAML)
	var work sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			for i := w; i < pods; i += writers {
				c.ready(b, "bench", fmt.Sprintf("pod-%d", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250+1))
			}
		})
	}
	work.Wait()
	empty := heap()
	p := follow(b, Options{Namespace: "bench", Pool: "p", Config: config})
	p.until(b, "all pods", func() bool { return len(p.last) == pods })
	full := heap()
	var took []time.Duration
	ready := true
	for b.Loop() {
		ready = !ready
		c.status(b, "bench", "pod-7", "10.1.0.8", map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[ready])
		begin := time.Now()
		p.until(b, "the pod", func() bool { return serves(p.last, "pod-7-rank-0") == ready })
		took = append(took, time.Since(begin))
	}
	b.ReportMetric(float64(full-empty)/pods, "heap-B/pod")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1e3, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1e3, "p99-ms")
}

func serves(specs []epp.Spec, name string) bool {
	return slices.ContainsFunc(specs, func(s epp.Spec) bool { return s.Name == name })
}

// heap returns the bytes in use after a collection.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
