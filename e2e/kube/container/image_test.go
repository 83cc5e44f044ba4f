package container

import (
	"errors"
	"testing"
)

func TestFind(t *testing.T) {
	images := Images{"ghcr.io/tandem-serving/epp": {Dir: "epp"}, "envoyproxy/envoy": {Dir: "envoy"},
		"registry:5000/a": {Dir: "port"}}
	for reference, want := range map[string]string{
		"ghcr.io/tandem-serving/epp:v1.2.3":                   "epp",
		"ghcr.io/tandem-serving/epp":                          "epp",
		"ghcr.io/tandem-serving/epp@sha256:0123456789":        "epp",
		"ghcr.io/tandem-serving/epp:v1.2.3@sha256:0123456789": "epp",
		"envoyproxy/envoy:distroless-v1.40.0":                 "envoy",
		"docker.io/envoyproxy/envoy:distroless-v1.40.0":       "envoy",
		"registry:5000/a":                                     "port",
		"registry:5000/a:1":                                   "port",
	} {
		if got, err := images.Find(reference); err != nil || got.Dir != want {
			t.Errorf("%s is %q: %v", reference, got.Dir, err)
		}
	}
	for _, reference := range []string{"ghcr.io/tandem-serving/ep:v1", "epp", "", ":", "registry"} {
		if _, err := images.Find(reference); !errors.Is(err, ErrNoImage) {
			t.Errorf("%q: %v, want ErrNoImage", reference, err)
		}
	}
}
