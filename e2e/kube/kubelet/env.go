package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
)

// objects is where the contents of variables and volumes come from.
type objects interface {
	configMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// expand replaces $(NAME) by the value of a variable, and $$ by $. What names no known variable stays as it is.
func expand(s string, value func(name string) (string, bool)) string {
	var out strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			return out.String() + s
		}
		out.WriteString(s[:i])
		s = s[i:]
		end := strings.IndexByte(s, ')')
		switch {
		case s[1] == '$':
			out.WriteByte('$')
			s = s[2:]
			continue
		case s[1] == '(' && end > 0:
			if v, ok := value(s[2:end]); ok {
				out.WriteString(v)
			} else {
				out.WriteString(s[:end+1])
			}
			s = s[end+1:]
			continue
		}
		out.WriteByte('$')
		s = s[1:]
	}
}

// variables is an environment in the order in which it was made; a later value of a name takes the place of the first.
type variables struct {
	names  []string
	values map[string]string
}

func (v *variables) set(name, value string) {
	if v.values == nil {
		v.values = map[string]string{}
	}
	if _, known := v.values[name]; !known {
		v.names = append(v.names, name)
	}
	v.values[name] = value
}

func (v *variables) get(name string) (string, bool) {
	value, ok := v.values[name]
	return value, ok
}

// list is NAME=value for each.
func (v *variables) list() []string {
	list := make([]string, 0, len(v.names))
	for _, name := range v.names {
		list = append(list, name+"="+v.values[name])
	}
	return list
}

// inPod is what fields of a pod are read with: what its status does not say yet is known here.
type inPod struct {
	pod           *corev1.Pod
	podIP, hostIP string
	allocatable   corev1.ResourceList // what a container without a limit could use
}

// environment returns the variables of a container: the API server's address, then envFrom, then env.
func environment(ctx context.Context, from objects, in inPod, c *corev1.Container, apiServer string) (*variables, error) {
	env := apiVariables(apiServer)
	for _, source := range c.EnvFrom {
		if err := setFrom(ctx, env, from, in.pod.Namespace, source); err != nil {
			return nil, err
		}
	}
	for _, v := range c.Env {
		if v.ValueFrom == nil {
			env.set(v.Name, expand(v.Value, env.get))
			continue
		}
		value, found, err := valueFrom(ctx, from, in, c, v.ValueFrom)
		if err != nil {
			return nil, err
		}
		if found {
			env.set(v.Name, value)
		}
	}
	return env, nil
}

// apiVariables are those by which clients find the API server.
func apiVariables(address string) *variables {
	env := new(variables)
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return env
	}
	env.set("KUBERNETES_SERVICE_HOST", host)
	env.set("KUBERNETES_SERVICE_PORT", port)
	env.set("KUBERNETES_SERVICE_PORT_HTTPS", port)
	return env
}

// optional reports whether something may be missing.
func optional(flag *bool) bool { return flag != nil && *flag }

func setFrom(ctx context.Context, env *variables, from objects, namespace string, source corev1.EnvFromSource) error {
	values := map[string]string{}
	switch ref, secret := source.ConfigMapRef, source.SecretRef; {
	case ref != nil:
		object, err := from.configMap(ctx, namespace, ref.Name)
		if err != nil {
			return missing(err, optional(ref.Optional))
		}
		values = object.Data
	case secret != nil:
		object, err := from.secret(ctx, namespace, secret.Name)
		if err != nil {
			return missing(err, optional(secret.Optional))
		}
		for name, value := range object.Data {
			values[name] = string(value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		env.set(source.Prefix+name, values[name])
	}
	return nil
}

// missing forgives the lack of an object that is optional.
func missing(err error, optional bool) error {
	if optional && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// errKey is that an object lacks a key that is asked for.
var errKey = errors.New("couldn't find key")

// valueFrom returns the value that a variable takes from elsewhere; found is false if it may be missing and is.
func valueFrom(ctx context.Context, from objects, in inPod, c *corev1.Container, source *corev1.EnvVarSource) (
	value string, found bool, err error) {
	switch {
	case source.FieldRef != nil:
		value, err = in.field(source.FieldRef.FieldPath)
		return value, err == nil, err
	case source.ResourceFieldRef != nil:
		value, err = in.resource(c, source.ResourceFieldRef)
		return value, err == nil, err
	case source.ConfigMapKeyRef != nil:
		ref := source.ConfigMapKeyRef
		object, err := from.configMap(ctx, in.pod.Namespace, ref.Name)
		if err != nil {
			return "", false, missing(err, optional(ref.Optional))
		}
		if value, found = object.Data[ref.Key]; found || optional(ref.Optional) {
			return value, found, nil
		}
		return "", false, fmt.Errorf("%w %s in ConfigMap %s/%s", errKey, ref.Key, in.pod.Namespace, ref.Name)
	case source.SecretKeyRef != nil:
		ref := source.SecretKeyRef
		object, err := from.secret(ctx, in.pod.Namespace, ref.Name)
		if err != nil {
			return "", false, missing(err, optional(ref.Optional))
		}
		if data, found := object.Data[ref.Key]; found || optional(ref.Optional) {
			return string(data), found, nil
		}
		return "", false, fmt.Errorf("%w %s in Secret %s/%s", errKey, ref.Key, in.pod.Namespace, ref.Name)
	}
	return "", false, fmt.Errorf("%w: a variable takes its value from where this kubelet cannot look", errUnsupported)
}

// field returns a field of the pod by its path, such as metadata.labels['a'] or status.podIP.
func (in inPod) field(path string) (string, error) {
	pod := in.pod
	if base, key, ok := subscript(path); ok {
		switch base {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return in.hostIP, nil
	case "status.podIP", "status.podIPs":
		return in.podIP, nil
	}
	return "", fmt.Errorf("%w: the field %s of pods", errUnsupported, path)
}

// subscript takes a['b'] apart.
func subscript(path string) (base, key string, ok bool) {
	base, rest, ok := strings.Cut(path, "['")
	if !ok {
		return "", "", false
	}
	key, ok = strings.CutSuffix(rest, "']")
	return base, key, ok
}

// formatMap returns how labels and annotations are written into a file: a line key="value" for each.
func formatMap(m map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, key+"="+strconv.Quote(m[key]))
	}
	return strings.Join(lines, "\n")
}

// resource returns a request or limit of a container in units of a divisor, rounded up.
func (in inPod) resource(c *corev1.Container, ref *corev1.ResourceFieldSelector) (string, error) {
	if ref.ContainerName != "" && ref.ContainerName != c.Name {
		i := slices.IndexFunc(in.pod.Spec.Containers, func(o corev1.Container) bool { return o.Name == ref.ContainerName })
		if i < 0 {
			return "", fmt.Errorf("%w: there is no container %s", errUnsupported, ref.ContainerName)
		}
		c = &in.pod.Spec.Containers[i]
	}
	list, name, ok := strings.Cut(ref.Resource, ".")
	if !ok || list != "limits" && list != "requests" {
		return "", fmt.Errorf("%w: the resource %s", errUnsupported, ref.Resource)
	}
	if list == "requests" {
		return divide(c.Resources.Requests[corev1.ResourceName(name)], ref.Divisor), nil
	}
	amount, set := c.Resources.Limits[corev1.ResourceName(name)]
	if !set {
		amount = in.allocatable[corev1.ResourceName(name)]
	}
	return divide(amount, ref.Divisor), nil
}

// divide rounds up; a divisor of 0 is 1.
func divide(amount, by resource.Quantity) string {
	if by.IsZero() {
		by = resource.MustParse("1")
	}
	quotient := new(big.Rat).SetFrac(thousandths(amount), thousandths(by))
	whole, rest := new(big.Int).QuoRem(quotient.Num(), quotient.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	return whole.String()
}

func thousandths(q resource.Quantity) *big.Int {
	if q.Value() > 1<<40 { // MilliValue would not hold much more than 2^53
		return new(big.Int).Mul(big.NewInt(q.Value()), big.NewInt(1000))
	}
	return big.NewInt(q.MilliValue())
}
