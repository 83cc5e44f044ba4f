package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/e2e/kube/container"
)

// errUnsupported is what a pod asks for and this kubelet does not do.
var errUnsupported = errors.New("this test kubelet does not support it")

// defaultMode is that of files in volumes that say nothing of it, as the API documents.
const defaultMode = 0o644

// volumes are those of one pod, each a folder. Only the pod's goroutine uses them.
type volumes struct {
	dir     string
	from    volumeSource
	written map[string]payload // what was written last, by volume
	tokens  map[string]token   // by volume and path
}

// volumeSource is what a kubelet fills volumes from.
type volumeSource interface {
	objects
	token(ctx context.Context, pod *corev1.Pod, audience string, seconds *int64) (token, error)
}

// token is a service account's, which is good for a pod as long as that lives.
type token struct {
	value string
	renew time.Time // when a new one has to be asked for
}

// prepare makes all volumes, or brings those up to date whose contents changed. renew is when that has to be done again
// though nothing else changes; zero: never.
func (v *volumes) prepare(ctx context.Context, in inPod) (renew time.Time, err error) {
	group := groupOf(in.pod)
	for i := range in.pod.Spec.Volumes {
		volume := &in.pod.Spec.Volumes[i]
		if err := v.make(ctx, in, volume, group); err != nil {
			return time.Time{}, fmt.Errorf("volume %s: %w", volume.Name, err)
		}
	}
	for _, t := range v.tokens {
		if renew.IsZero() || t.renew.Before(renew) {
			renew = t.renew
		}
	}
	return renew, nil
}

// groupOf returns the group that a pod wants its volumes to belong to, or -1.
func groupOf(pod *corev1.Pod) int {
	if c := pod.Spec.SecurityContext; c != nil && c.FSGroup != nil {
		return int(*c.FSGroup)
	}
	return -1
}

func (v *volumes) path(name string) string { return filepath.Join(v.dir, name) }

func (v *volumes) make(ctx context.Context, in inPod, volume *corev1.Volume, group int) error {
	dir := v.path(volume.Name)
	if volume.EmptyDir != nil {
		return makeEmpty(dir, group)
	}
	files, err := v.contents(ctx, in, volume)
	if err != nil {
		return err
	}
	if was, made := v.written[volume.Name]; made && maps.Equal(was, files) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := files.write(dir, group); err != nil {
		return err
	}
	v.written[volume.Name] = files
	return nil
}

// makeEmpty makes a folder that every container of the pod may write to. Linux gives new files in it its group.
func makeEmpty(dir string, group int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(0o777)
	if group >= 0 {
		mode |= fs.ModeSetgid
	}
	return own(dir, group, mode)
}

// selection is what a volume shows of one object.
type selection struct {
	name     string
	items    []corev1.KeyToPath // all keys if there are none
	mode     *int32
	optional *bool
}

// contents returns the files of a volume that is made of objects.
func (v *volumes) contents(ctx context.Context, in inPod, volume *corev1.Volume) (payload, error) {
	files := payload{}
	switch {
	case volume.ConfigMap != nil:
		s := volume.ConfigMap
		return files, v.addConfigMap(ctx, files, in, selection{s.Name, s.Items, s.DefaultMode, s.Optional})
	case volume.Secret != nil:
		s := volume.Secret
		return files, v.addSecret(ctx, files, in, selection{s.SecretName, s.Items, s.DefaultMode, s.Optional})
	case volume.DownwardAPI != nil:
		return files, addFields(files, in, volume.DownwardAPI.Items, volume.DownwardAPI.DefaultMode)
	case volume.Projected != nil:
		for i := range volume.Projected.Sources {
			if err := v.addProjected(ctx, files, in, volume, &volume.Projected.Sources[i]); err != nil {
				return nil, err
			}
		}
		return files, nil
	}
	return nil, fmt.Errorf("%w: volumes other than emptyDir, configMap, secret, downwardAPI and projected", errUnsupported)
}

func (v *volumes) addProjected(ctx context.Context, files payload, in inPod, volume *corev1.Volume,
	s *corev1.VolumeProjection) error {
	mode := volume.Projected.DefaultMode
	switch {
	case s.ConfigMap != nil:
		return v.addConfigMap(ctx, files, in, selection{s.ConfigMap.Name, s.ConfigMap.Items, mode, s.ConfigMap.Optional})
	case s.Secret != nil:
		return v.addSecret(ctx, files, in, selection{s.Secret.Name, s.Secret.Items, mode, s.Secret.Optional})
	case s.DownwardAPI != nil:
		return addFields(files, in, s.DownwardAPI.Items, mode)
	case s.ServiceAccountToken != nil:
		t, err := v.tokenFor(ctx, in.pod, volume.Name, s.ServiceAccountToken)
		if err != nil {
			return err
		}
		files[s.ServiceAccountToken.Path] = file{t, modeOf(nil, mode)}
		return nil
	}
	return fmt.Errorf("%w: projections other than of configMap, secret, downwardAPI and serviceAccountToken", errUnsupported)
}

func (v *volumes) addConfigMap(ctx context.Context, files payload, in inPod, s selection) error {
	object, err := v.from.configMap(ctx, in.pod.Namespace, s.name)
	if err != nil {
		return missing(err, optional(s.optional))
	}
	data := maps.Clone(object.Data)
	if data == nil {
		data = map[string]string{}
	}
	for key, value := range object.BinaryData {
		data[key] = string(value)
	}
	return addKeys(files, "ConfigMap "+in.pod.Namespace+"/"+s.name, data, s)
}

func (v *volumes) addSecret(ctx context.Context, files payload, in inPod, s selection) error {
	object, err := v.from.secret(ctx, in.pod.Namespace, s.name)
	if err != nil {
		return missing(err, optional(s.optional))
	}
	data := map[string]string{}
	for key, value := range object.Data {
		data[key] = string(value)
	}
	return addKeys(files, "Secret "+in.pod.Namespace+"/"+s.name, data, s)
}

// addKeys adds a file for each key of an object, or for those only that are selected.
func addKeys(files payload, object string, data map[string]string, s selection) error {
	if len(s.items) == 0 {
		for key, value := range data {
			files[key] = file{value, modeOf(nil, s.mode)}
		}
		return nil
	}
	for _, item := range s.items {
		value, found := data[item.Key]
		if !found && !optional(s.optional) {
			return fmt.Errorf("%w %s in %s", errKey, item.Key, object)
		}
		if found {
			files[item.Path] = file{value, modeOf(item.Mode, s.mode)}
		}
	}
	return nil
}

func addFields(files payload, in inPod, items []corev1.DownwardAPIVolumeFile, mode *int32) error {
	for _, item := range items {
		value, err := "", fmt.Errorf("%w: a file of the downward API that is neither a field nor a resource", errUnsupported)
		switch {
		case item.FieldRef != nil:
			value, err = in.field(item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = in.resource(&corev1.Container{}, item.ResourceFieldRef)
		}
		if err != nil {
			return err
		}
		files[item.Path] = file{value, modeOf(item.Mode, mode)}
	}
	return nil
}

func modeOf(own, common *int32) fs.FileMode {
	switch {
	case own != nil:
		return fs.FileMode(*own)
	case common != nil:
		return fs.FileMode(*common)
	}
	return defaultMode
}

// tokenFor gives a token that need not be renewed yet.
func (v *volumes) tokenFor(ctx context.Context, pod *corev1.Pod, volume string,
	s *corev1.ServiceAccountTokenProjection) (string, error) {
	key := volume + "/" + s.Path
	if t, ok := v.tokens[key]; ok && time.Now().Before(t.renew) {
		return t.value, nil
	}
	t, err := v.from.token(ctx, pod, s.Audience, s.ExpirationSeconds)
	if err != nil {
		return "", err
	}
	v.tokens[key] = t
	return t.value, nil
}

// uses reports whether a volume of a pod is made of an object.
func uses(pod *corev1.Pod, kind, name string) bool {
	named := func(configMap, secret string) bool {
		return name != "" && (kind == configMapKind && configMap == name || kind == secretKind && secret == name)
	}
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		switch {
		case volume.ConfigMap != nil && named(volume.ConfigMap.Name, ""):
			return true
		case volume.Secret != nil && named("", volume.Secret.SecretName):
			return true
		case volume.Projected != nil && slices.ContainsFunc(volume.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.ConfigMap != nil && named(s.ConfigMap.Name, "") || s.Secret != nil && named("", s.Secret.Name)
		}):
			return true
		}
	}
	return false
}

// mounts returns what a container sees of the volumes.
func (v *volumes) mounts(pod *corev1.Pod, c *corev1.Container, env *variables) ([]container.Mount, error) {
	var mounts []container.Mount
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(pod.Spec.Volumes, func(volume corev1.Volume) bool { return volume.Name == m.Name })
		if i < 0 {
			return nil, fmt.Errorf("%w: there is no volume %s", errUnsupported, m.Name)
		}
		source, err := v.subPath(m, env)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, container.Mount{Source: source, Target: m.MountPath,
			ReadOnly: m.ReadOnly || pod.Spec.Volumes[i].EmptyDir == nil})
	}
	return mounts, nil
}

// subPath returns the part of a volume that is mounted, and makes it as a folder if it is not there.
func (v *volumes) subPath(m corev1.VolumeMount, env *variables) (string, error) {
	sub := m.SubPath
	if m.SubPathExpr != "" {
		sub = expand(m.SubPathExpr, env.get)
	}
	if sub == "" {
		return v.path(m.Name), nil
	}
	if !filepath.IsLocal(sub) {
		return "", fmt.Errorf("%w: the subPath %q of volume %s leads out of it", errUnsupported, sub, m.Name)
	}
	path := filepath.Join(v.path(m.Name), sub)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real, nil
	}
	return path, makeEmpty(path, -1)
}
