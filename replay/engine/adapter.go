package engine

import "slices"

// fits reports whether a request with an adapter can run beside those that run.
func (e *Engine) fits(adapter string) bool {
	if e.config.Adapters == 0 || adapter == "" {
		return true
	}
	running := adapters(e.running)
	return len(running) < e.config.Adapters || slices.Contains(running, adapter)
}

// waitOn has the requests that others have passed wait at their place.
func (e *Engine) waitOn() {
	if len(e.passed) == 0 {
		return
	}
	e.blocked = e.blocked || e.waiting.len() == 0
	for _, r := range slices.Backward(e.passed) {
		e.waiting.pushFront(r)
	}
	clear(e.passed)
	e.passed = e.passed[:0]
}

// adapt loads the adapters of a step. It returns how much longer the step takes for using adapters, and how many it has to load.
func (e *Engine) adapt() (slowdown float64, loads int) {
	slowdown = 1
	if e.config.Adapters == 0 {
		return slowdown, 0
	}
	for _, r := range e.running {
		if r.step == 0 || r.Adapter == "" {
			continue
		}
		if e.config.Slowdown > 0 {
			slowdown = e.config.Slowdown
		}
		if i := slices.Index(e.loaded, r.Adapter); i >= 0 {
			e.loaded = append(slices.Delete(e.loaded, i, i+1), r.Adapter)
			continue
		}
		loads++
		if e.loaded = append(e.loaded, r.Adapter); len(e.loaded) > e.config.Adapters {
			e.loaded = slices.Delete(e.loaded, 0, 1)
		}
	}
	return slowdown, loads
}

// Adapters returns the adapters of the requests that run, and of those that wait, in the order of their names.
func (e *Engine) Adapters() (running, waiting []string) {
	return adapters(e.running), adapters(e.waiting.all[e.waiting.head:])
}

// adapters returns the adapters of requests.
func adapters(of []*Request) (all []string) {
	for _, r := range of {
		if i, known := slices.BinarySearch(all, r.Adapter); r.Adapter != "" && !known {
			all = slices.Insert(all, i, r.Adapter)
		}
	}
	return all
}
