package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// VLLMImage is the name by which VLLM's image is found.
const VLLMImage = "vllm/vllm-openai"

// VLLMModel is the model that VLLM's image has with it: "tandem/tiny". It has no more than 4,096 tokens of context.
const VLLMModel = "tandem/tiny"

// errNoVLLM says that this checkout has no vLLM, and how to get one.
var errNoVLLM = errors.New("there is no vLLM here (make .tools/vllm .tools/tinymodel installs one: 7 GB)")

// vllmUser is the user that the image names. The chart gives its own (engine.runAsUser).
const vllmUser = 2000

// Folders of the image, but for Python's own, which stays where it is.
const (
	vllmPackages  = "opt/vllm/env"   // the virtual environment; not where this machine has it, which a volume may hide
	vllmWorkspace = "vllm-workspace" // where the image's program starts, as in vLLM's own
	vllmPrograms  = "opt/vllm/bin"
	vllmSite      = "opt/vllm/site" // of the module that every Python process of an engine loads
)

// VLLM returns an image of vLLM's CPU engine, with a tiny model as an image has it whose weights are baked in: in the folder that
// the program starts in, under the model's name (VLLMModel). Python and its packages are the checkout's own .tools/vllm and
// what that was made from, read-only. Where they are missing the test is skipped, or fails if CI=true. The image lies in a
// folder of the test's.
//
// An engine takes 2 GB and a minute to start. It goes slower than on its own where it is not told to be small; the variables
// and arguments for that are a user's to give (see the scenario vllm in e2e/kube/cluster).
func VLLM(tb testing.TB) Images {
	tb.Helper()
	image, err := vllmImage(tb.TempDir())
	switch {
	case err == nil:
	case errors.Is(err, errNoVLLM) && os.Getenv("CI") != "true":
		tb.Skip(err)
	default:
		tb.Fatal(err)
	}
	return Images{VLLMImage: image}
}

// vllmImage makes the image in a folder.
func vllmImage(root string) (Image, error) {
	found, err := findVLLM()
	if err != nil {
		return Image{}, err
	}
	if err := found.makeRoot(root); err != nil {
		return Image{}, fmt.Errorf("making the image %s: %w", VLLMImage, err)
	}
	return Image{
		Root: root,
		// Not the environment as a whole: its own folder is for root's eyes only, since mktemp made it.
		Files: map[string]string{
			"/" + vllmPackages + "/bin": filepath.Join(found.packages, "bin"),
			"/" + vllmPackages + "/lib": filepath.Join(found.packages, "lib"),
		},
		Shared:     found.shared(),
		Entrypoint: []string{"vllm", "serve"},
		Env: []string{
			"PATH=/" + vllmPrograms + ":/usr/local/bin:/usr/bin:/bin",
			"PYTHONPATH=/" + vllmSite, "PYTHONDONTWRITEBYTECODE=1",
			"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1",
		},
		Dir: "/" + vllmWorkspace, UID: vllmUser, GID: vllmUser,
	}, nil
}

// vllmTools are the parts of the image, as folders of this machine.
type vllmTools struct {
	packages string // the virtual environment
	python   string // what that was made from: the folder that has bin and lib
	model    string
	site     string
}

// findVLLM looks in the checkout that the current directory lies in.
func findVLLM() (vllmTools, error) {
	dir, err := os.Getwd()
	if err != nil {
		return vllmTools{}, fmt.Errorf("finding vLLM: %w", err)
	}
	for up := ""; dir != up; up, dir = dir, filepath.Dir(dir) {
		t := vllmTools{model: filepath.Join(dir, ".tools", "tinymodel"), site: filepath.Join(dir, "e2e", "vllm", "testdata",
			"site")}
		_, noModel := os.Stat(t.model)
		packages, noPackages := filepath.EvalSymlinks(filepath.Join(dir, ".tools", "vllm"))
		python, noPython := filepath.EvalSymlinks(filepath.Join(packages, "bin", "python"))
		if errors.Join(noModel, noPackages, noPython) == nil {
			t.packages, t.python = packages, filepath.Dir(filepath.Dir(python))
			return t, nil
		}
	}
	return vllmTools{}, errNoVLLM
}

// shared returns the folders of this machine that the image has too: libraries, and Python.
func (t vllmTools) shared() (shared []string) {
	for _, dir := range []string{"/usr", "/bin", "/lib", "/lib64", t.python} {
		if _, err := os.Stat(dir); err == nil && (dir != t.python || !strings.HasPrefix(dir+"/", "/usr/")) {
			shared = append(shared, dir)
		}
	}
	return shared
}

// makeRoot puts the image's other files into a folder.
func (t vllmTools) makeRoot(root string) error {
	program := fmt.Sprintf("#!%s\nimport sys\nfrom vllm.entrypoints.cli.main import main\nsys.exit(main())\n",
		"/"+vllmPackages+"/bin/python")
	return errors.Join(
		copyFolder(filepath.Join(root, vllmWorkspace, VLLMModel), t.model),
		copyFolder(filepath.Join(root, vllmSite), t.site),
		// By this file Python knows that it is in an environment.
		copyFile(filepath.Join(root, vllmPackages, "pyvenv.cfg"), filepath.Join(t.packages, "pyvenv.cfg")),
		writeFile(filepath.Join(root, vllmPrograms, "vllm"), []byte(program), 0o755),
	)
}

// copyFolder copies the files of a folder, but not its folders, so that every user may read them.
func copyFolder(to, from string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		if err := copyFile(filepath.Join(to, entry.Name()), filepath.Join(from, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeFile(to, b, 0o644)
}

// writeFile makes the file's folders too. All of it may be read by every user, whatever the umask.
func writeFile(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, content, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}
