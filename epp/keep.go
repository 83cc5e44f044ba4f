package epp

import "sync"

// Keep holds what outlives a reload of the configuration, such as a prefix index that took hours to fill. A plugin asks for a
// value under a key when it is built, and gets the value that a plugin of an earlier configuration made under this key. The
// zero Keep is empty.
type Keep struct {
	Clock Clock // by which plugins tell the time; nil = SystemClock

	mu   sync.Mutex
	kept map[string]any
}

// Kept returns the value under the key, which create makes if there is none. The key must name everything that create depends
// on.
func Kept[T any](k *Keep, key string, create func() T) T {
	k.mu.Lock()
	defer k.mu.Unlock()
	if v, ok := k.kept[key].(T); ok {
		return v
	}
	v := create()
	if k.kept == nil {
		k.kept = make(map[string]any)
	}
	k.kept[key] = v
	return v
}

// EndpointJoined implements EndpointObserver: it calls all kept values that are one.
func (k *Keep) EndpointJoined(e *Endpoint) {
	k.each(func(o EndpointObserver) { o.EndpointJoined(e) })
}

// EndpointLeft implements EndpointObserver: it calls all kept values that are one, whether or not a plugin of the current
// configuration uses them. A value that is unused now may be used later, when the slot belongs to another endpoint.
func (k *Keep) EndpointLeft(e *Endpoint) {
	k.each(func(o EndpointObserver) { o.EndpointLeft(e) })
}

func (k *Keep) each(tell func(EndpointObserver)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.kept {
		if o, ok := v.(EndpointObserver); ok {
			tell(o)
		}
	}
}
