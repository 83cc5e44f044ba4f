package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"gocloud.dev/aws"
)

const (
	// sqsTimeout bounds one request, its repetitions included.
	sqsTimeout = 10 * time.Second
	// sqsWait is how long a queue without messages waits for one, in seconds. Without a wait SQS asks some of its servers only.
	sqsWait = 1
	// sqsTogether is how many messages SQS takes or gives in a request.
	sqsTogether = 10
	// sqsOverhead is what SQS counts of a message besides its text: its attributes.
	sqsOverhead = 256
	// sqsFIFO ends the names of queues that deliver in order.
	sqsFIFO = ".fifo"
)

// SQS is a queue of Amazon SQS. It delivers a message again whose visibility timeout lapses. Results go to a queue too: to a FIFO queue with
// the id of the request as the one that SQS deduplicates by, so a result that is sent again within five minutes is not stored again.
type SQS struct {
	cfg       Config
	client    *sqs.Client
	transport *http.Transport
	account   *string // nil: that of the credentials
	leases

	found  sync.Mutex
	queues map[string]sqsQueue // by name; nil until SQS has answered
}

// sqsQueue is a queue that SQS knows.
type sqsQueue struct {
	url  string
	most int // bytes of a message
}

// OpenSQS opens the queue cfg.Queue of a region, such as sqs://eu-west-1. SQS need not answer yet.
func OpenSQS(cfg *Config) (*SQS, error) {
	query, account, endpoint, err := sqsOptions(cfg)
	if err != nil {
		return nil, err
	}
	settings, err := aws.V2ConfigFromURLParams(context.Background(), query) // it asks no server
	if err != nil {
		return nil, fmt.Errorf("reading the settings of AWS: %w", err)
	}
	if settings.Region == "" {
		return nil, errors.New("the broker has no region: want an address like sqs://eu-west-1, or AWS_REGION")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if made, ok := settings.HTTPClient.(interface{ GetTransport() *http.Transport }); ok {
		transport = made.GetTransport() // a copy, with the certificates of AWS_CA_BUNDLE
	}
	transport.MaxIdleConnsPerHost = max(cfg.MaxInFlight, 2) // each message has its own request for its result
	client := sqs.NewFromConfig(settings, func(o *sqs.Options) {
		o.HTTPClient = &http.Client{Transport: transport}
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
	})
	return &SQS{cfg: *cfg, client: client, transport: transport, account: account, leases: newLeases()}, nil
}

// sqsOptions reads the address.
func sqsOptions(cfg *Config) (query url.Values, account *string, endpoint string, err error) {
	at, err := url.Parse(cfg.Broker)
	if err != nil || at.User != nil || at.Port() != "" || strings.Trim(at.Path, "/") != "" {
		return nil, nil, "", errors.New("broker is not an address like sqs://eu-west-1: SQS has no password, and credentials are those of the environment, as AWS's tools find them")
	}
	query = at.Query()
	for name := range query {
		switch name {
		case "endpoint", "account", "profile", "role":
		default:
			return nil, nil, "", fmt.Errorf("broker has the parameter %s: want endpoint, account, profile or role", name)
		}
	}
	endpoint = query.Get("endpoint")
	if to, err := url.Parse(endpoint); endpoint != "" && (err != nil || to.Host == "" || to.Scheme != "http" && to.Scheme != "https") {
		return nil, nil, "", fmt.Errorf("the broker's endpoint is %q: want a URL such as http://127.0.0.1:5000", endpoint)
	}
	if id := query.Get("account"); id != "" {
		account = &id
	}
	query.Del("endpoint")
	query.Del("account")
	if at.Host != "" {
		query.Set("region", at.Host)
	}
	return query, account, endpoint, nil
}

// sqsName is what SQS allows.
var sqsName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,75}(\.fifo)?$|^[A-Za-z0-9_-]{76,80}$`)

// checkSQS reports what is wrong with the configuration of a queue in SQS.
func checkSQS(cfg *Config) error {
	if cfg.Credentials != "" || cfg.Consumer != "" {
		return errors.New("consumer and credentials are not for SQS: leave them out")
	}
	for _, name := range append([]string{cfg.Queue, cfg.Results, cfg.DeadLetters}, cfg.OtherResults...) {
		if name != "" && !sqsName.MatchString(name) {
			return fmt.Errorf("%q is not the name of a queue in SQS: want up to 80 letters, digits, - and _, and .fifo at the end of a FIFO queue", name)
		}
	}
	_, _, _, err := sqsOptions(cfg)
	return err
}

// Close implements Source.
func (s *SQS) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// ready looks the queues up the first time, and after an error: an operator may have made one anew.
func (s *SQS) ready(ctx context.Context) (map[string]sqsQueue, error) {
	s.found.Lock()
	defer s.found.Unlock()
	if s.queues != nil {
		return s.queues, nil
	}
	queues := map[string]sqsQueue{}
	for _, name := range append([]string{s.cfg.Queue, s.cfg.Results, s.cfg.DeadLetters}, s.cfg.OtherResults...) {
		if name == "" {
			continue
		}
		q, err := s.look(ctx, name)
		if err != nil {
			return nil, err
		}
		queues[name] = q
	}
	s.queues = queues
	return queues, nil
}

// look returns a queue. The one of messages must not take them away before this package gives up on them.
func (s *SQS) look(ctx context.Context, name string) (sqsQueue, error) {
	at, err := s.client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name, QueueOwnerAWSAccountId: s.account})
	var missing *types.QueueDoesNotExist
	if errors.As(err, &missing) {
		more := ""
		if strings.HasSuffix(name, sqsFIFO) {
			more = " --attributes FifoQueue=true"
		}
		return sqsQueue{}, fmt.Errorf("there is no queue %s: make it, as with aws sqs create-queue --queue-name %s%s", name, name, more)
	}
	if err != nil {
		return sqsQueue{}, fmt.Errorf("looking for the queue %s: %w", name, err)
	}
	is, err := s.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: at.QueueUrl, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	if err != nil {
		return sqsQueue{}, fmt.Errorf("reading the attributes of the queue %s: %w", name, err)
	}
	most, err := strconv.Atoi(is.Attributes[string(types.QueueAttributeNameMaximumMessageSize)])
	if err != nil {
		return sqsQueue{}, fmt.Errorf("reading the attributes of the queue %s: MaximumMessageSize: %w", name, err)
	}
	if name == s.cfg.Queue {
		if err := s.checkRedrive(is.Attributes[string(types.QueueAttributeNameRedrivePolicy)]); err != nil {
			return sqsQueue{}, err
		}
	}
	return sqsQueue{*at.QueueUrl, most}, nil
}

var sqsReceives = regexp.MustCompile(`"maxReceiveCount" *: *"?(\d+)`)

// checkRedrive refuses a policy that takes messages away, without a result, before this package gives up on them.
func (s *SQS) checkRedrive(policy string) error {
	found := sqsReceives.FindStringSubmatch(policy)
	if found == nil {
		return nil
	}
	if n, err := strconv.Atoi(found[1]); err != nil || n <= s.cfg.mostDeliveries {
		return fmt.Errorf("the redrive policy of %s would take messages away that have no result: want none, or a maxReceiveCount above %d, which it is also increased by when batch servers stop",
			s.cfg.Queue, s.cfg.mostDeliveries)
	}
	return nil
}

// Claim implements Source. Messages come in an order of SQS, so none is claimed for its deadline.
func (s *SQS) Claim(ctx context.Context, most int, due time.Time) (messages []Message, err error) {
	if !due.IsZero() {
		return nil, nil
	}
	// A consumer that stops meanwhile releases what comes: without an answer, SQS may have given away messages that then wait for the end of their claims.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqsTimeout)
	defer cancel()
	queues, err := s.ready(ctx)
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	got, err := s.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: new(queues[s.cfg.Queue].url), MaxNumberOfMessages: int32(min(most, sqsTogether)), VisibilityTimeout: s.seconds(), WaitTimeSeconds: sqsWait,
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameApproximateReceiveCount}, MessageAttributeNames: []string{"traceparent"}})
	if err != nil {
		s.forget()
		return nil, fmt.Errorf("claiming messages of %s: %w", s.cfg.Queue, err)
	}
	for _, is := range got.Messages {
		deliveries, err := strconv.Atoi(is.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)])
		if err != nil || is.MessageId == nil || is.ReceiptHandle == nil || is.Body == nil {
			return messages, fmt.Errorf("claiming messages of %s: SQS gives one without its id, receipt, body or number of deliveries", s.cfg.Queue)
		}
		m := Message{Key: *is.MessageId, Deliveries: deliveries, Request: parse([]byte(*is.Body))}
		if trace := is.MessageAttributes["traceparent"].StringValue; trace != nil {
			m.withTrace(*trace)
		}
		s.cfg.checkResults(&m.Request)
		s.hold(m.Key, *is.ReceiptHandle, *is.Body, asked)
		messages = append(messages, m)
	}
	return messages, nil
}

func (s *SQS) seconds() int32 { return int32(s.wait / time.Second) }

// forget has the queues looked up again.
func (s *SQS) forget() {
	s.found.Lock()
	defer s.found.Unlock()
	s.queues = nil
}

// Renew implements Source.
func (s *SQS) Renew(ctx context.Context, held []Message) (lost, cancelled []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, sqsTimeout)
	defer cancel()
	for _, handles := range s.handles(held, sqsTogether) {
		if err = s.extend(ctx, handles, s.seconds()); err != nil {
			err = fmt.Errorf("renewing the claims of %s: %w", s.cfg.Queue, err)
			break
		}
	}
	return s.lost(held), nil, err
}

// extend has claims end in so many seconds. It notes which ones are lost.
func (s *SQS) extend(ctx context.Context, handles map[string]string, seconds int32) error {
	queues, err := s.ready(ctx)
	if err != nil {
		return err
	}
	request := sqs.ChangeMessageVisibilityBatchInput{QueueUrl: new(queues[s.cfg.Queue].url)}
	for key, handle := range handles {
		request.Entries = append(request.Entries, types.ChangeMessageVisibilityBatchRequestEntry{Id: &key, ReceiptHandle: &handle, VisibilityTimeout: seconds})
	}
	asked := time.Now()
	answer, err := s.client.ChangeMessageVisibilityBatch(ctx, &request)
	if err != nil {
		return err
	}
	for _, failed := range answer.Failed {
		if !failed.SenderFault {
			err = fmt.Errorf("SQS answers %s", *failed.Code)
		} else {
			s.lose(*failed.Id)
		}
		delete(handles, *failed.Id)
	}
	s.renew(handles, asked)
	return err
}

// Finish implements Source.
func (s *SQS) Finish(ctx context.Context, m Message, result []byte, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, sqsTimeout)
	defer cancel()
	queues, err := s.ready(ctx)
	if err != nil {
		return err
	}
	return s.finish(ctx, sqsMailbox{s, queues}, &s.cfg, m, sqsText(result), reason)
}

// sqsText escapes, in JSON, the two characters that SQS refuses and JSON allows.
func sqsText(text []byte) []byte {
	text = bytes.ReplaceAll(text, []byte("\uFFFE"), []byte(`\ufffe`))
	return bytes.ReplaceAll(text, []byte("\uFFFF"), []byte(`\uffff`))
}

// sqsMailbox stores in queues that ready has found.
type sqsMailbox struct {
	*SQS
	queues map[string]sqsQueue
}

func (s sqsMailbox) limit(where string) (int, string) {
	return s.queues[where].most - sqsOverhead, "the queue's MaximumMessageSize allows"
}

func (s sqsMailbox) send(ctx context.Context, where, key string, text []byte) error {
	body := string(sqsText(text))
	message := sqs.SendMessageInput{QueueUrl: new(s.queues[where].url), MessageBody: &body,
		MessageAttributes: map[string]types.MessageAttributeValue{requestAttribute: {DataType: new("String"), StringValue: &key}}}
	if strings.HasSuffix(where, sqsFIFO) {
		message.MessageGroupId, message.MessageDeduplicationId = &key, &key // results have no order, so each is a group
	}
	if _, err := s.client.SendMessage(ctx, &message); err != nil {
		s.forget()
		return err
	}
	return nil
}

func (s sqsMailbox) remove(ctx context.Context, handle string) error {
	_, err := s.client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: new(s.queues[s.cfg.Queue].url), ReceiptHandle: &handle})
	if sqsRefuses(err) {
		return ErrLost
	}
	return err
}

// sqsRefuses reports whether SQS says that a receipt is not, or no longer, that of a claim.
func sqsRefuses(err error) bool {
	var api interface{ ErrorCode() string }
	if !errors.As(err, &api) {
		return false
	}
	switch api.ErrorCode() {
	case "ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight":
		return true
	}
	return false
}

// Release implements Source. SQS delivers the message again at once, and counts that.
func (s *SQS) Release(ctx context.Context, m Message) error {
	ctx, cancel := context.WithTimeout(ctx, sqsTimeout)
	defer cancel()
	a, held := s.get(m.Key)
	s.drop(m.Key)
	if !held {
		return ErrLost
	}
	if err := s.extend(ctx, map[string]string{m.Key: a.handle}, 0); err != nil {
		return fmt.Errorf("releasing a message of %s: %w", s.cfg.Queue, err)
	}
	return nil
}

// Waiting implements Source: about the number that SQS can deliver.
func (s *SQS) Waiting(ctx context.Context) (int64, error) {
	queues, err := s.ready(ctx)
	if err != nil {
		return 0, err
	}
	const count = types.QueueAttributeNameApproximateNumberOfMessages
	is, err := s.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: new(queues[s.cfg.Queue].url), AttributeNames: []types.QueueAttributeName{count}})
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(is.Attributes[string(count)], 10, 64)
}
