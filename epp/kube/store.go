package kube

import (
	"maps"
	"slices"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// store holds the objects of a kind by name, all of one namespace. It is safe for concurrent use.
type store[T client.Object] struct {
	mu      sync.Mutex
	objects map[string]T
	version uint64 // grows with every change
}

func (s *store[T]) set(object T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects == nil {
		s.objects = make(map[string]T)
	}
	s.objects[object.GetName()] = object
	s.version++
}

func (s *store[T]) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, name)
	s.version++
}

// list returns the objects ordered by name, and their version.
func (s *store[T]) list() (objects []T, version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		objects = append(objects, s.objects[name])
	}
	return objects, s.version
}
