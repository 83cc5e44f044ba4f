package handoff

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxLinks is the most prefill pods that have metrics of their own. A decode pod meets as many as its pool has; 64 of them
	// cost 500 series, and every decode pod of the pool has as many.
	maxLinks = 64
	// linkIdle is how long a pod's metrics are kept after its last hand-off: long enough for pools with little traffic, short
	// enough that a rollout's new pods find space.
	linkIdle = time.Hour
	// otherLinks stands for all further pods.
	otherLinks = "other"
)

// Results of hand-offs in the metrics of links. Beside them are the causes of a decode leg without an answer: causeFailed,
// causeTimeout.
const (
	linkRead    = "read"           // decode answered with the hand-off
	linkPrefill = "prefill-failed" // the prefill leg brought none
	linkLate    = "late"           // it was too old
)

// Links counts the hand-offs from each prefill pod to the local engine. It is a prometheus.Collector, because it forgets pods
// that are gone, and bounds how many there are. It is safe for concurrent use.
type Links struct {
	blockBytes int64
	now        func() time.Time

	mu  sync.Mutex // guards the rest
	pod map[string]*link
}

// link is the hand-offs from one prefill pod.
type link struct {
	results map[string]uint64
	reads   uint64        // of streams
	waited  time.Duration // in reads
	blocks  uint64
	used    time.Time
}

// NewLinks makes an empty set. blockBytes is how many bytes of KV cache a block has, 0 = unknown; now is the clock.
func NewLinks(blockBytes int64, now func() time.Time) *Links {
	return &Links{blockBytes: blockBytes, now: now, pod: map[string]*link{}}
}

// Read counts a hand-off that decode answered with. wait is from the decode leg to the first event of a stream; 0 = the answer
// is no stream, and its first byte says nothing about the transfer.
func (s *Links) Read(pod string, blocks int, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.of(pod)
	l.results[linkRead]++
	l.blocks += uint64(blocks)
	if wait > 0 {
		l.reads++
		l.waited += wait
	}
}

// Unread counts a hand-off that decode did not answer with, by its result.
func (s *Links) Unread(pod, result string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of(pod).results[result]++
}

// of returns the link of a pod, or that of all others if there are too many. The caller holds mu.
func (s *Links) of(pod string) *link {
	now := s.now()
	l := s.pod[pod]
	if l == nil && len(s.pod) >= maxLinks {
		s.forget(now)
		if len(s.pod) >= maxLinks {
			pod = otherLinks
			l = s.pod[pod]
		}
	}
	if l == nil {
		l = &link{results: map[string]uint64{}}
		s.pod[pod] = l
	}
	l.used = now
	return l
}

// forget drops the pods that had no hand-off for linkIdle. The caller holds mu.
func (s *Links) forget(now time.Time) {
	for pod, l := range s.pod {
		if now.Sub(l.used) > linkIdle {
			delete(s.pod, pod)
		}
	}
}

var (
	linkHandoffs = prometheus.NewDesc("tandem_kv_link_handoffs_total",
		"Hand-offs from a prefill pod to this decode pod, by result.", []string{"prefill", "result"}, nil)
	linkSeconds = prometheus.NewDesc("tandem_kv_link_seconds",
		"Time from a decode leg that reads a hand-off to the first event of its stream: waiting in decode, transfer, first step.", []string{"prefill"}, nil)
	linkBlocks = prometheus.NewDesc("tandem_kv_link_blocks_total",
		"KV blocks of the hand-offs that decode read.", []string{"prefill"}, nil)
	linkBytes = prometheus.NewDesc("tandem_kv_link_bytes_total",
		"Bytes of these blocks, computed with --kv-block-bytes.", []string{"prefill"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Links) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{linkHandoffs, linkSeconds, linkBlocks, linkBytes} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Links) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(s.now())
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for pod, l := range s.pod {
		for result, n := range l.results {
			counter(linkHandoffs, n, pod, result)
		}
		to <- prometheus.MustNewConstSummary(linkSeconds, l.reads, l.waited.Seconds(), nil, pod)
		counter(linkBlocks, l.blocks, pod)
		if s.blockBytes > 0 {
			counter(linkBytes, l.blocks*uint64(s.blockBytes), pod)
		}
	}
}
