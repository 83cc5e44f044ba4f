package producer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/tokens"
	"github.com/tandem-serving/tandem/epp/tokens/chat"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

const (
	// maxLocalText is the longest prompt that is turned into ids in the picker (bytes): it takes one core for 0.1 s at most.
	maxLocalText = 1 << 20
	// maxScratch is the longest text whose memory is kept for the next prompt (bytes).
	maxScratch = 256 << 10
	// localTimeout is how long a request waits for ids where there is no service.
	localTimeout = time.Second
)

// localTokens is an epp.Preparer that turns prompts of the completions and chat APIs into token ids in the picker, and leaves what it cannot
// do to a tokenizer service, if there is one.
type localTokens struct {
	models  map[string]*localModel // by the name in requests
	service *tokenService          // nil = none
	clock   epp.Clock
}

// localModel is what makes ids of one model's prompts.
type localModel struct {
	tokenizer *tokens.Tokenizer
	template  *chat.Template // nil = chats have no ids
	check     *tokenCheck
}

// readModels reads the files of models. One that several models or an earlier configuration use is read once.
func readModels(p *TokenLocal, b *epp.Builder) (map[string]*localModel, error) {
	models := make(map[string]*localModel, len(p.ModelTokenizerMap))
	for model, path := range p.ModelTokenizerMap {
		version, err := fileVersion(path)
		if err != nil {
			return nil, fmt.Errorf("the tokenizer of model %q: %w", model, err)
		}
		file := epp.Kept(b.Keep, "tokenizer "+version, func() *kept[*tokens.Tokenizer] { return readTokenizer(path) })
		if file.err != nil {
			return nil, fmt.Errorf("the tokenizer of model %q: %w", model, file.err)
		}
		models[model] = &localModel{tokenizer: file.value}
		var templateVersion string
		if models[model].template, templateVersion, err = chatTemplate(path, p.ChatTemplateMap[model], b); err != nil {
			if p.ChatTemplateMap[model] != "" {
				return nil, fmt.Errorf("the chat template of model %q: %w", model, err)
			}
			b.Log.Warn("the picker makes no token ids of chats: name a chat template in local.chatTemplateMap, or a tokenizer service in vllm.url", "model", model, "error", err)
		}
		models[model].check = keptCheck(b, model, checkedLocal, version+", "+templateVersion)
		if class := tokenizerClass(path); rebuilt[class] {
			b.Log.Warn("engines may make other token ids than the tokenizer.json says: compare with an engine's /tokenize", "model", model, "file", path, "tokenizer_class", class)
		}
	}
	return models, nil
}

// fileVersion tells a file from what it was before, "" if there is none.
func fileVersion(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s of %d bytes and %s", path, info.Size(), info.ModTime()), nil
}

// chatTemplate reads the chat template of a model: the named file, or else one beside its tokenizer. version tells it from others.
func chatTemplate(tokenizer, named string, b *epp.Builder) (t *chat.Template, version string, err error) {
	dir := filepath.Dir(tokenizer)
	config := filepath.Join(dir, "tokenizer_config.json")
	template := cmp.Or(named, filepath.Join(dir, "chat_template.jinja"))
	configVersion, err := fileVersion(config)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	templateVersion, err := fileVersion(template)
	if err != nil && (named != "" || !errors.Is(err, fs.ErrNotExist)) {
		return nil, "", err
	}
	key := "chat template " + templateVersion + " and " + configVersion
	file := epp.Kept(b.Keep, key, func() *kept[*chat.Template] {
		var texts [2][]byte
		for i, path := range [2]string{config, template} {
			var err error
			if texts[i], err = os.ReadFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return &kept[*chat.Template]{err: err}
			}
		}
		t, err := chat.Read(texts[0], texts[1])
		if err != nil {
			err = fmt.Errorf("%s: %w", cmp.Or(named, dir), err)
		}
		return &kept[*chat.Template]{t, err}
	})
	return file.value, key, file.err
}

// rebuilt are the classes whose tokenizers Transformers 5 builds by rules of its own, with the vocabulary alone from tokenizer.json.
// Transformers 5.19 makes other ids for DeepSeek V3 and Yi.
var rebuilt = map[string]bool{"LlamaTokenizer": true, "LlamaTokenizerFast": true}

// tokenizerClass returns what the tokenizer_config.json beside a tokenizer.json says, "" if there is none.
func tokenizerClass(path string) string {
	var config struct {
		Class string `json:"tokenizer_class"`
	}
	data, err := os.ReadFile(filepath.Join(filepath.Dir(path), "tokenizer_config.json"))
	if err != nil || json.Unmarshal(data, &config) != nil {
		return ""
	}
	return config.Class
}

// kept is what was made of a file, or why it cannot be used.
type kept[T any] struct {
	value T
	err   error
}

// Close implements io.Closer, so that a file is forgotten when no configuration names it any more.
func (*kept[T]) Close() error { return nil }

func readTokenizer(path string) *kept[*tokens.Tokenizer] {
	data, err := os.ReadFile(path)
	if err != nil {
		return &kept[*tokens.Tokenizer]{err: err}
	}
	t, err := tokens.Read(data)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return &kept[*tokens.Tokenizer]{t, err}
}

// Timeout implements epp.Preparer.
func (l *localTokens) Timeout() time.Duration {
	if l.service != nil {
		return l.service.Timeout()
	}
	return localTimeout
}

// Describe implements prometheus.Collector.
func (l *localTokens) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (l *localTokens) Collect(ch chan<- prometheus.Metric) {
	for _, m := range l.models {
		m.check.Collect(ch)
	}
	if l.service != nil {
		l.service.Collect(ch)
	}
}

// Close implements io.Closer.
func (l *localTokens) Close() error {
	if l.service != nil {
		return l.service.Close()
	}
	return nil
}

// Prepare implements epp.Preparer.
func (l *localTokens) Prepare(ctx context.Context, r *epp.Request) (add func(*epp.Request), err error) {
	if len(r.Prompt.IDs) > 0 {
		return nil, nil
	}
	model := l.models[r.Model]
	if model != nil && l.service != nil && model.check.wrong.Load() {
		model = nil
	}
	if ids := l.ids(ctx, r, model); len(ids) > 0 {
		return func(r *epp.Request) { r.Prompt.SetIDs(ids, model.check) }, nil
	}
	if l.service != nil {
		return l.service.Prepare(ctx, r)
	}
	return nil, nil
}

// ids returns the token ids of a request's prompt for a model, nil if they cannot be made here.
func (l *localTokens) ids(ctx context.Context, r *epp.Request, model *localModel) []uint32 {
	if model == nil || len(r.Prompt.Media) > 0 {
		return nil
	}
	s := scratches.Get().(*scratch)
	defer s.release()
	special := false
	switch {
	case r.API == pd.APICompletions:
		prompt, around, ok := promptText(r.Body)
		if !ok {
			return nil
		}
		s.text, special = append(s.text[:0], prompt...), around
	case r.API == pd.APIChat && model.template != nil && len(r.Body) > 0:
		body := r.Body[0]
		if len(r.Body) > 1 {
			s.body = s.body[:0]
			for _, segment := range r.Body {
				s.body = append(s.body, segment...)
			}
			body = s.body
		}
		prompt, err := model.template.Append(ctx, s.text[:0], body, l.clock.Now())
		if err != nil {
			return nil
		}
		s.text, special = prompt.Text, prompt.Special
	default:
		return nil
	}
	s.ids = model.tokenizer.Append(s.ids[:0], s.text, special)
	return slices.Clone(s.ids)
}

// scratch is what the ids of a prompt are made in.
type scratch struct {
	body, text []byte
	ids        []uint32
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// release keeps the memory for the next prompt, unless it is that of an unusually long one.
func (s *scratch) release() {
	if max(cap(s.body), cap(s.text)) <= maxScratch {
		scratches.Put(s)
	}
}

// What is read of a completions request.
const (
	wantPrompt = iota
	wantSpecial
	wantTruncated
	wantEmbeds
)

var promptMembers = body.NewTable(body.Want{Path: "prompt"}, body.Want{Path: "add_special_tokens"}, body.Want{Path: "truncate_prompt_tokens"},
	body.Want{Path: "prompt_embeds"})

// promptText returns a completions request's prompt, and whether the engine puts special tokens around it. It returns false if the prompt is
// not one string, or if the engine sees anything but that string.
func promptText(segments [][]byte) (text string, special, ok bool) {
	var whole body.Body
	var scan body.Scanner
	scan.Reset(promptMembers, body.Limits{}, nil)
	for _, s := range segments {
		whole.Append(s)
		if _, err := scan.Write(s); err != nil {
			return "", false, false
		}
	}
	if scan.Close() != nil {
		return "", false, false
	}
	for _, want := range []int{wantTruncated, wantEmbeds} {
		if m, found := scan.Find(want); found && m.Kind != body.Null {
			return "", false, false
		}
	}
	special = true
	if m, found := scan.Find(wantSpecial); found && m.Kind != body.Null {
		special = string(whole.Bytes(m.Value)) == "true"
	}
	m, found := scan.Find(wantPrompt)
	if !found || m.Kind != body.String {
		return "", false, false
	}
	raw := whole.Bytes(m.Value)
	if len(raw) > maxLocalText {
		return "", false, false
	}
	text, err := body.Text(raw)
	return text, special, err == nil
}
