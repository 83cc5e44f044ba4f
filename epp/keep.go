package epp

import "sync"

// Keep holds what outlives a reload of the configuration, such as a prefix index that took hours to fill: a plugin that is
// built asks for it under a key, and gets what a plugin of an earlier configuration made under the same key. The zero
// value is empty.
type Keep struct {
	mu   sync.Mutex
	kept map[string]any
}

// Kept returns what is kept under the key, or keeps what create makes. The key says everything that create depends on.
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

// EndpointJoined implements EndpointObserver: it tells all kept values that are one.
func (k *Keep) EndpointJoined(e *Endpoint) {
	k.each(func(o EndpointObserver) { o.EndpointJoined(e) })
}

// EndpointLeft implements EndpointObserver: it tells all kept values that are one, whether a plugin of the configuration in
// use holds them or not. One that no plugin holds now may be used again later, when the slot is another endpoint's.
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
