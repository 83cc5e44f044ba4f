package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/epp/tokens/jinja"
)

// Template is a model's chat template.
type Template struct {
	usual     *variant
	withTools *variant // for requests with tools
	special   map[string]jinja.Value
	known     known // messages
	tools     known
}

// variant is one of a model's templates.
type variant struct {
	*jinja.Template
	developer bool // it knows the role developer
	number    int  // of the variant in what messages keep
}

// variants is how many a model has.
const variants = 2

// ErrNone says that a model's files have no chat template.
var ErrNone = errors.New("there is no chat template")

// config is tokenizer_config.json, as far as templates depend on it.
type config struct {
	ChatTemplate json.RawMessage `json:"chat_template"`
}

// specialNames are the special tokens that templates know by name.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// Read reads a model's chat template: text, if it is not empty, which is that of chat_template.jinja, or else the one in configJSON, which
// is tokenizer_config.json. Special tokens are always those of configJSON, which may be nil.
func Read(configJSON, text []byte) (*Template, error) {
	var c config
	members := map[string]json.RawMessage{}
	if configJSON != nil {
		if err := json.Unmarshal(configJSON, &c); err != nil {
			return nil, fmt.Errorf("reading tokenizer_config.json: %w", err)
		}
		if err := json.Unmarshal(configJSON, &members); err != nil {
			return nil, fmt.Errorf("reading tokenizer_config.json: %w", err)
		}
	}
	t := &Template{special: map[string]jinja.Value{}}
	for _, name := range specialNames {
		if token, ok := specialToken(members[name]); ok {
			t.special[name] = token
		}
	}
	sources := map[string]string{"default": string(text)}
	if len(text) == 0 {
		var err error
		if sources, err = c.templates(); err != nil {
			return nil, err
		}
	}
	var err error
	if t.usual, err = parse(sources["default"]); err != nil {
		return nil, err
	}
	t.withTools = t.usual
	if source := sources["tool_use"]; source != "" {
		if t.withTools, err = parse(source); err == nil {
			t.withTools.number = 1
		}
	}
	return t, err
}

func parse(source string) (*variant, error) {
	if source == "" {
		return nil, ErrNone
	}
	t, err := jinja.Parse(source)
	return &variant{Template: t, developer: strings.Contains(source, `"developer"`) || strings.Contains(source, "'developer'")}, err
}

// templates returns the templates of tokenizer_config.json by name: default alone, if there is one without a name.
func (c *config) templates() (map[string]string, error) {
	var one string
	if json.Unmarshal(c.ChatTemplate, &one) == nil {
		return map[string]string{"default": one}, nil
	}
	var several []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if len(c.ChatTemplate) > 0 {
		if err := json.Unmarshal(c.ChatTemplate, &several); err != nil {
			return nil, fmt.Errorf("reading tokenizer_config.json: chat_template: %w", err)
		}
	}
	all := map[string]string{}
	for _, s := range several {
		all[s.Name] = s.Template
	}
	return all, nil
}

// specialToken reads a token: a text, or an object with it.
func specialToken(raw json.RawMessage) (string, bool) {
	var text string
	if len(raw) == 0 || string(raw) == "null" {
		return "", false
	}
	if json.Unmarshal(raw, &text) == nil {
		return text, true
	}
	var token struct {
		Content *string `json:"content"`
	}
	if json.Unmarshal(raw, &token) == nil && token.Content != nil {
		return *token.Content, true
	}
	return "", false
}
