package kube

import (
	"maps"
	"slices"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// shelf keeps the objects of a kind by name: they are of one namespace. Any goroutine may use it.
type shelf[T client.Object] struct {
	mu      sync.Mutex
	objects map[string]T
	version uint64 // grows with every change
}

func (s *shelf[T]) set(object T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects == nil {
		s.objects = make(map[string]T)
	}
	s.objects[object.GetName()] = object
	s.version++
}

func (s *shelf[T]) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, name)
	s.version++
}

// list gives the objects in the order of their names, and the version they are of.
func (s *shelf[T]) list() (objects []T, version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		objects = append(objects, s.objects[name])
	}
	return objects, s.version
}
