package epp

import "sync"

// Keep holds what shall outlive a reload of the configuration, such as a prefix index that took hours to fill: the next
// build gets what the one before it made, if it asks under the same key. The zero value is empty.
type Keep struct {
	mu   sync.Mutex
	kept map[string]any
}

// Kept gives what is kept under the key, or keeps what create makes. The key says everything that create depends on.
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

// Forget tells everything kept that an endpoint has left the pool, in use or not: its slot may soon be another's.
func (k *Keep) Forget(e *Endpoint) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.kept {
		if f, ok := v.(interface{ Forget(*Endpoint) }); ok {
			f.Forget(e)
		}
	}
}
