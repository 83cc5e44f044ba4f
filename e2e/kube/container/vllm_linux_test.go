package container

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestVLLMImage: what a user who is not root needs is there and may be read.
func TestVLLMImage(t *testing.T) {
	image, err := VLLM(t).Find(VLLMImage + ":v0.32.0")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range []string{
		filepath.Join(vllmWorkspace, VLLMModel, "config.json"), filepath.Join(vllmWorkspace, VLLMModel, "model.safetensors"),
		filepath.Join(vllmSite, "sitecustomize.py"), filepath.Join(vllmPrograms, "vllm"),
	} {
		info, err := os.Stat(filepath.Join(image.Root, path))
		if err != nil {
			t.Error(err)
			continue
		}
		if found++; info.Mode().Perm()&0o444 != 0o444 {
			t.Errorf("/%s has mode %v: not every user may read it", path, info.Mode())
		}
	}
	if found == 0 {
		t.Fatalf("the image has no files below %s", image.Root)
	}
	for _, dir := range slices.AppendSeq(slices.Clone(image.Shared), maps.Values(image.Files)) {
		info, err := os.Stat(dir)
		if err != nil {
			t.Error(err)
		} else if info.Mode().Perm()&0o5 != 0o5 {
			t.Errorf("%s has mode %v: not every user may look into it", dir, info.Mode())
		}
	}
}

// TestVLLMRuns loads what takes an engine seconds, as the user that the image names. A whole engine runs in the scenario
// vllm.
func TestVLLMRuns(t *testing.T) {
	Require(t)
	image, err := VLLM(t).Find(VLLMImage)
	if err != nil {
		t.Fatal(err)
	}
	s := newTestSandbox(t, "vllm")
	const look = "import os, torch, vllm, nixl; print(vllm.__version__, torch.__version__, os.getuid(), os.path.isfile('" +
		VLLMModel + "/config.json'), sorted(os.listdir('/sys/class/net')))"
	var said bytes.Buffer
	c, err := s.Start(Spec{Name: "vllm", Image: image, Args: []string{pythonOf(t, image), "-c", look},
		Env: slices.Concat(image.Env, []string{"HOME=/tmp"}),
		Dir: image.Dir, UID: image.UID, GID: image.GID, ReadOnlyRoot: true, Mounts: []Mount{{Target: "/tmp"}}, Log: &said})
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	want := []string{"0.", " 2000 True ", "'eth0'", "'lo'"}
	missing := slices.DeleteFunc(want, func(w string) bool { return strings.Contains(said.String(), w) })
	if code, _ := c.Exit(); code != 0 || len(missing) > 0 {
		t.Errorf("it ended with %d and did not say %q:\n%s", code, missing, &said)
	}
}

// pythonOf returns the program that the image's own program is run by.
func pythonOf(t *testing.T, image Image) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(image.Root, vllmPrograms, "vllm"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimPrefix(first, "#!")
}
