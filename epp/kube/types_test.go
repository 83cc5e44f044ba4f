package kube

import (
	"fmt"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// TestRoundTrip reads objects as users write them, strictly, and writes them again: nothing may be missing or added.
func TestRoundTrip(t *testing.T) {
	for file, made := range map[string]func() runtime.Object{
		"pool.yaml":             func() runtime.Object { return &InferencePool{} },
		"pool-minimal.yaml":     func() runtime.Object { return &InferencePool{} },
		"pool-alpha.yaml":       func() runtime.Object { return &AlphaInferencePool{} },
		"pool-alpha-ports.yaml": func() runtime.Object { return &AlphaInferencePool{} },
		"objectives-new.yaml":   func() runtime.Object { return &InferenceObjective{} },
		"objectives-alpha.yaml": func() runtime.Object { return &InferenceObjective{} },
		"rewrites-new.yaml":     func() runtime.Object { return &InferenceModelRewrite{} },
		"rewrites-alpha.yaml":   func() runtime.Object { return &InferenceModelRewrite{} },
	} {
		for i, document := range documents(t, "objects/"+file) {
			t.Run(fmt.Sprintf("%s/%d", file, i), func(t *testing.T) {
				object := made()
				if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
					t.Fatal(err)
				}
				copied := object.DeepCopyObject()
				if !reflect.DeepEqual(copied, object) {
					t.Errorf("the copy differs:\n%+v\n%+v", copied, object)
				}
				want, got := generic(t, []byte(document)), written(t, copied)
				if fill(want) != fill(got) {
					t.Errorf("got\n%s\nwant\n%s", fill(got), fill(want))
				}
				shared(t, "object", reflect.ValueOf(object).Elem(), reflect.ValueOf(copied).Elem())
			})
		}
	}
}

func generic(t *testing.T, document []byte) (fields map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal(document, &fields); err != nil {
		t.Fatal(err)
	}
	return fields
}

func written(t *testing.T, object runtime.Object) map[string]any {
	t.Helper()
	data, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return generic(t, data)
}

// fill returns an object as text, without empty members: an empty group is the same as none.
func fill(value any) string {
	switch v := value.(type) {
	case map[string]any:
		kept := map[string]string{}
		for name, field := range v {
			if text := fill(field); text != "" || name == "message" {
				kept[name] = text
			}
		}
		return fmt.Sprint(kept)
	case []any:
		text := "["
		for _, item := range v {
			text += fill(item) + "; "
		}
		return text + "]"
	}
	return fmt.Sprint(value)
}

// shared reports memory that an object and its copy both point to.
func shared(t *testing.T, path string, a, b reflect.Value) {
	t.Helper()
	switch a.Kind() {
	case reflect.Pointer, reflect.Map:
		if !a.IsNil() && a.UnsafePointer() == b.UnsafePointer() && a.Type().String() != "*time.Location" {
			t.Errorf("%s is shared with the copy", path)
		}
		if a.Kind() == reflect.Pointer && !a.IsNil() && a.Elem().Kind() == reflect.Struct && a.Type().String() != "*time.Location" {
			shared(t, path, a.Elem(), b.Elem())
		}
	case reflect.Slice:
		if a.Len() > 0 && a.UnsafePointer() == b.UnsafePointer() {
			t.Errorf("%s is shared with the copy", path)
		}
		for i := range a.Len() {
			shared(t, fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i))
		}
	case reflect.Struct:
		for i := range a.NumField() {
			shared(t, path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
		}
	}
}

func TestListsAreCopied(t *testing.T) {
	pool := decode[InferencePool](t, documents(t, "objects/pool.yaml")[0])
	alpha := decode[AlphaInferencePool](t, documents(t, "objects/pool-alpha.yaml")[0])
	objective := decode[InferenceObjective](t, documents(t, "objects/objectives-new.yaml")[0])
	rewrite := decode[InferenceModelRewrite](t, documents(t, "objects/rewrites-new.yaml")[0])
	for name, list := range map[string]runtime.Object{
		"pools":       &InferencePoolList{Items: []InferencePool{*pool}},
		"older pools": &AlphaInferencePoolList{Items: []AlphaInferencePool{*alpha}},
		"objectives":  &InferenceObjectiveList{Items: []InferenceObjective{*objective}},
		"rewrites":    &InferenceModelRewriteList{Items: []InferenceModelRewrite{*rewrite}},
		"empty":       &InferencePoolList{},
	} {
		t.Run(name, func(t *testing.T) {
			copied := list.DeepCopyObject()
			if !reflect.DeepEqual(copied, list) {
				t.Errorf("the copy differs:\n%+v\n%+v", copied, list)
			}
			shared(t, "list", reflect.ValueOf(list).Elem(), reflect.ValueOf(copied).Elem())
		})
	}
}
