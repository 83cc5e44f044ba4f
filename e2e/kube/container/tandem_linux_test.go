package container

import (
	"strings"
	"testing"
)

// TestTandem runs the images as a cluster does that enforces the restricted level.
func TestTandem(t *testing.T) {
	images := Tandem(t)
	s := newTestSandbox(t, "tandem")
	for _, c := range []struct {
		reference string
		want      string
	}{
		{"ghcr.io/tandem-serving/epp:v1.2.3", "go1."},
		{"ghcr.io/tandem-serving/sidecar:v1.2.3", "go1."},
		{"ghcr.io/tandem-serving/sim:v1.2.3", "go1."},
		{"ghcr.io/tandem-serving/tandem:v1.2.3", "go1."},
		{"envoyproxy/envoy:distroless-v1.40.0", "/1.4"},
	} {
		image, err := images.Find(c.reference)
		if err != nil {
			t.Error(err)
			continue
		}
		out, code := said(t, s, Spec{Name: c.reference, Image: image, Args: append(image.Entrypoint, "--version"), Env: image.Env,
			UID: image.UID, GID: image.GID, ReadOnlyRoot: true})
		if code != 0 || !strings.Contains(out, c.want) {
			t.Errorf("%s says %q and ends with %d", c.reference, out, code)
		}
	}
}

// TestSidecarNIXL: the keeper finds the library in the image, and all that this opens.
func TestSidecarNIXL(t *testing.T) {
	image, err := SidecarNIXL(t).Find("ghcr.io/tandem-serving/sidecar-nixl:v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	out, code := said(t, newTestSandbox(t, "nixl"), Spec{Name: "keeper", Image: image,
		Args: []string{"/keeper", "--probe", "--transport=nixl"}, Env: image.Env, UID: image.UID, GID: image.GID,
		ReadOnlyRoot: true, Mounts: []Mount{{Target: "/tmp"}}})
	if code != 0 {
		t.Errorf("it ended with %d:\n%s", code, out)
	}
}
