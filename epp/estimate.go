package epp

// This file estimates what an engine's page would say now. The page may be as old as the interval at which pages are read, and
// a burst is shorter than that: without the reservations made since, all of it would go to the engine whose last page looked best.

// Queues reports whether requests waited in the engine for others to end when its page was read. Requests that wait only for
// their KV cache wait for no other.
func (l *Load) Queues() bool {
	waiting, _ := l.Signals.Value(Waiting)
	delayed, _ := l.Signals.Value(Delayed)
	return waiting > delayed
}

// LearnBatch sets Batch, given the load of the page before. A single page with a queue does not lower it: a request that has
// just arrived waits for the engine's next step, even if the engine is nearly idle.
func (l *Load) LearnBatch(before *Load) {
	running, _ := l.Signals.Value(Running)
	if l.Batch = running; !l.Queues() || !before.Queues() {
		l.Batch = max(before.Batch, running)
	}
}

// spare returns how many more requests the engine could run when its page was read, as far as is known.
func (l *Load) spare() float64 {
	if l.Queues() {
		return 0
	}
	running, _ := l.Signals.Value(Running)
	return max(0, l.Batch-running)
}

// Unseen returns how many requests are in flight that the endpoint's page does not show: those sent since it was
// read, and those that had not reached the engine by then, such as requests whose prompt another pod computes. It is negative if
// more have ended since.
func (c *Candidate) Unseen() float64 {
	shown := float64(c.Load.Sent.Requests)
	if running, known := c.Load.Signals.Value(Running); known {
		waiting, _ := c.Load.Signals.Value(Waiting)
		shown = min(shown, running+waiting)
	}
	return float64(c.InFlight.Requests) - shown
}

// Waiting estimates how many requests wait in the engine now. Unseen ones count as far as the engine is not known to have room
// for them.
func (c *Candidate) Waiting() (requests float64, known bool) {
	requests, known = c.Load.Signals.Value(Waiting)
	unseen := c.Unseen()
	if unseen > 0 {
		unseen = max(0, unseen-c.Load.spare())
	}
	return max(0, requests+unseen), known
}

// Running estimates how many requests the engine has now that do not wait, or will run as soon as it has room for them.
func (c *Candidate) Running() (requests float64, known bool) {
	requests, known = c.Load.Signals.Value(Running)
	return max(0, requests+c.Unseen()), known
}

// KVUsage estimates the share of the engine's KV cache that is used now, or will be once it has computed the prompts sent
// since its page was read. The page must show the size of the cache for that.
func (c *Candidate) KVUsage() (share float64, known bool) {
	share, known = c.Load.Signals.Value(KVUsage)
	size := float64(c.Load.Cache.BlockTokens) * float64(c.Load.Cache.Blocks)
	if tokens := c.InFlight.Tokens - c.Load.Sent.Tokens; tokens > 0 && size > 0 {
		share = min(1, share+float64(tokens)/size)
	}
	return share, known
}
