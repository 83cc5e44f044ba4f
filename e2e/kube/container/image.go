package container

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNoImage says that there is no image of a name.
var ErrNoImage = errors.New("there is no such image")

// Image is the content of an image, as a registry has it.
type Image struct {
	Root   string            // folder with the image's files; "" if it has none
	Files  map[string]string // further files, by their absolute path in it: files of this machine
	Shared []string          // files and folders of this machine that it has at the same path, as libraries

	Entrypoint []string
	Command    []string
	Env        []string // NAME=value
	Dir        string   // working directory; "": the root
	UID        int
	GID        int
}

// Images are images by repository, without tag and digest: "ghcr.io/tandem-serving/epp".
type Images map[string]Image

// Find returns the image of a reference, whatever its tag or digest. The error is [ErrNoImage].
func (i Images) Find(reference string) (Image, error) {
	image, ok := i[repository(reference)]
	if !ok {
		return Image{}, fmt.Errorf("finding image %s: %w", reference, ErrNoImage)
	}
	return image, nil
}

// repository returns a reference without digest, tag and default registry. A colon before the last slash belongs to a
// registry's port.
func repository(reference string) string {
	name, _, _ := strings.Cut(reference, "@")
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name = name[:colon]
	}
	return strings.TrimPrefix(name, "docker.io/")
}
