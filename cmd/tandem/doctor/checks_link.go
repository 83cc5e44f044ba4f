package doctor

import (
	"context"
	"fmt"

	"github.com/tandem-serving/tandem/pd"
)

// Families of vLLM's metrics about NIXL transfers, on decode engines.
const (
	transferBytes   = "vllm:nixl_bytes_transferred"
	transferSeconds = "vllm:nixl_xfer_time_seconds"
)

const (
	// largeTransfer is the mean size of transfers, in bytes, from which their speed says something about the link. That of smaller ones
	// is about latencies.
	largeTransfer = 16 << 20
	// slowLink is the speed, in bytes a second, below which a transfer did not go over RDMA, NVLink or shared memory: UCX over TCP moves
	// KV caches at 0.25 to 2.3 GB/s, also between engines on one machine, and RDMA over a port of 100 Gb/s moves them at 4 to 12.
	slowLink = 2.5e9
)

// overTCP is the advice if TCP carries KV caches.
const overTCP = "UCX takes TCP without a word if nothing else works: UCX_LOG_LEVEL=info on the engine shows what it takes (rma lanes). Give pods the RDMA " +
	"devices (resources, UCX_NET_DEVICES; engines on one node also need hostIPC), or let cost-pd-decider learn what the link costs"

// checkLinkSpeed tells how fast decode engines have read KV caches since they were started. An engine does not tell what carries them: UCX
// takes TCP without a word if nothing else works.
func checkLinkSpeed(ctx context.Context, f *fleet) finding {
	var readers []*target
	for _, t := range f.live() {
		if t.role.Has(pd.RoleDecode) && t.page.Has(transferSeconds) {
			readers = append(readers, t)
		}
	}
	if len(readers) == 0 {
		return finding{}
	}
	return each(ctx, readers, f.how.Timeout, func(_ context.Context, t *target) finding {
		bytes, _ := t.page.Sum(transferBytes + "_sum") // of all ranks
		seconds, _ := t.page.Sum(transferSeconds + "_sum")
		transfers, _ := t.page.Sum(transferSeconds + "_count")
		return linkSpeed(bytes, seconds, transfers)
	})
}

// linkSpeed judges a number of transfers by their bytes and seconds.
func linkSpeed(bytes, seconds, transfers float64) finding {
	switch {
	case transfers < 1 || seconds <= 0:
		return finding{verdict: unknown, seen: "has read no KV cache yet", do: "tandem doctor link sends some"}
	case bytes/transfers < largeTransfer:
		return finding{verdict: unknown, seen: fmt.Sprintf("the KV caches that it has read are too small to tell (%.2f MB on average)", bytes/transfers/1e6),
			do: "tandem doctor link sends larger ones"}
	}
	seen := fmt.Sprintf("%.2f GB/s on average over %.0f KV caches of %.0f MB", bytes/seconds/1e9, transfers, bytes/transfers/1e6)
	if bytes/seconds < slowLink {
		return finding{verdict: warn, seen: seen + ", as over TCP"}
	}
	return finding{verdict: ok, seen: seen}
}
