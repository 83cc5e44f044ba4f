package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-serving/tandem/batch"
)

const (
	// leaseTime is how long a claim lasts that is not renewed.
	leaseTime = 30 * time.Second
	// mostDead is how many dead letters a queue keeps: the newest.
	mostDead = 10_000
	// redisTimeout bounds one command.
	redisTimeout = 10 * time.Second
)

// Redis is a queue in Redis, as llm-d's Async Processor has it: a sorted set of messages whose score is their deadline, and lists of results. Claims
// are kept in keys of their own, so other consumers of the set see each message at most once too. The clock of claims is that of Redis.
type Redis struct {
	client                               *redis.Client
	owner                                string // this process
	pending, leases, claims, dead, other string // keys; other is where results are that name no list
}

// OpenRedis opens the sorted set queue of a server, such as redis://user:password@host:6379/0, rediss:// with TLS, or unix:///socket. Results go
// to the list that a message names, else to results. The server need not answer yet.
func OpenRedis(address, queue, results string) (*Redis, error) {
	options, err := redisOptions(address)
	if err != nil {
		return nil, err
	}
	return &Redis{client: redis.NewClient(options), owner: batch.NewID("consumer_"), pending: queue, other: results,
		leases: queue + ":tandem:leases", claims: queue + ":tandem:claims", dead: queue + ":tandem:dead"}, nil
}

func redisOptions(address string) (*redis.Options, error) {
	options, err := redis.ParseURL(address)
	if err != nil {
		return nil, errors.New("broker is not an address like redis://user:password@host:6379/0") // the error may have the password
	}
	options.ContextTimeoutEnabled = true
	return options, nil
}

// Close implements Source.
func (r *Redis) Close() error { return r.client.Close() }

// Of each claim, leases has its end in milliseconds by the key of the message, which is its SHA-1, and claims has the fields KEY:m, the message,
// KEY:o, the owner, KEY:s, the score, and KEY:n, the number of deliveries. A message that is in the set twice is one: its producer
// wrote the same bytes while the first was claimed.
var claimScript = redis.NewScript(`
local pending, leases, claims = KEYS[1], KEYS[2], KEYS[3]
local most, owner, lease, due = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local out = {}
local function take(key, message, n)
  redis.call('ZADD', leases, now + lease, key)
  redis.call('HSET', claims, key .. ':o', owner, key .. ':n', n)
  table.insert(out, key)
  table.insert(out, message)
  table.insert(out, tostring(n))
end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, most)) do
  local c = redis.call('HMGET', claims, key .. ':m', key .. ':s', key .. ':n')
  if not c[1] then
    redis.call('ZREM', leases, key)
  elseif due == '+inf' or tonumber(c[2]) <= tonumber(due) then
    take(key, c[1], c[3] + 1)
  end
end
local left = most - #out / 3
if left > 0 then
  local found = redis.call('ZRANGEBYSCORE', pending, '-inf', due, 'WITHSCORES', 'LIMIT', 0, left)
  for i = 1, #found, 2 do
    redis.call('ZREM', pending, found[i])
    local key = redis.sha1hex(found[i])
    if redis.call('HEXISTS', claims, key .. ':m') == 0 then
      redis.call('HSET', claims, key .. ':m', found[i], key .. ':s', found[i + 1])
      take(key, found[i], 1)
    end
  end
end
return out`)

// Claim implements Source.
func (r *Redis) Claim(ctx context.Context, most int, due time.Time) ([]Message, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	latest := "+inf"
	if !due.IsZero() {
		latest = strconv.FormatInt(due.Unix(), 10)
	}
	found, err := claimScript.Run(ctx, r.client, []string{r.pending, r.leases, r.claims}, most, r.owner, leaseTime.Milliseconds(), latest).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("claiming messages of %s: %w", r.pending, err)
	}
	var messages []Message
	for i := 0; i+2 < len(found); i += 3 {
		deliveries, _ := strconv.Atoi(found[i+2]) // the script wrote it
		messages = append(messages, Message{Key: found[i], Deliveries: deliveries, Request: parse([]byte(found[i+1]))})
	}
	cancelled, _ := r.cancelled(ctx, messages) // they are claimed all the same, and Renew asks again
	for i := range messages {
		messages[i].Cancelled = cancelled[messages[i].Key]
	}
	return messages, nil
}

// cancelled returns the keys of the messages whose producer has cancelled them: by llm-d's request-cancel:ID, which has the token of the message.
func (r *Redis) cancelled(ctx context.Context, messages []Message) (map[string]bool, error) {
	var marks, keys, tokens []string
	for _, m := range messages {
		if m.ID != "" && m.Token != "" {
			marks, keys, tokens = append(marks, "request-cancel:"+m.ID), append(keys, m.Key), append(tokens, m.Token)
		}
	}
	if len(marks) == 0 {
		return nil, nil
	}
	values, err := r.client.MGet(ctx, marks...).Result()
	if err != nil {
		return nil, fmt.Errorf("looking for cancelled messages of %s: %w", r.pending, err)
	}
	cancelled := map[string]bool{}
	for i, value := range values {
		if value == tokens[i] {
			cancelled[keys[i]] = true
		}
	}
	return cancelled, nil
}

// It returns the keys of the messages that the owner does not hold any more.
var renewScript = redis.NewScript(`
local leases, claims = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local until_ = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[2])
local lost = {}
for i = 3, #ARGV do
  if redis.call('HGET', claims, ARGV[i] .. ':o') == ARGV[1] then
    redis.call('ZADD', leases, until_, ARGV[i])
  else
    table.insert(lost, ARGV[i])
  end
end
return lost`)

// Renew implements Source.
func (r *Redis) Renew(ctx context.Context, held []Message) (lost, cancelled []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	args := []any{r.owner, leaseTime.Milliseconds()}
	for _, m := range held {
		args = append(args, m.Key)
	}
	if lost, err = renewScript.Run(ctx, r.client, []string{r.leases, r.claims}, args...).StringSlice(); err != nil {
		return nil, nil, fmt.Errorf("renewing the claims of %s: %w", r.pending, err)
	}
	marked, err := r.cancelled(ctx, held)
	for key := range marked {
		cancelled = append(cancelled, key)
	}
	return lost, cancelled, err
}

// Where results cannot be stored, because the key has another type, the message must not stay for ever: it becomes a dead letter.
var finishScript = redis.NewScript(`
local leases, claims, results, dead, active, cancel = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local key, owner, result, token, reason, most = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local c = redis.call('HMGET', claims, key .. ':o', key .. ':m')
if c[1] ~= owner then return 0 end
local pushed = redis.pcall('LPUSH', results, result)
if type(pushed) == 'table' and pushed.err then reason = 'storing the result: ' .. pushed.err end
if reason ~= '' then
  redis.call('LPUSH', dead, cjson.encode({reason = reason, time = tonumber(redis.call('TIME')[1]), message = c[2]}))
  redis.call('LTRIM', dead, 0, most - 1)
end
redis.call('ZREM', leases, key)
redis.call('HDEL', claims, key .. ':m', key .. ':o', key .. ':s', key .. ':n')
if token ~= '' then
  if redis.call('GET', active) == token then redis.call('DEL', active) end
  if redis.call('GET', cancel) == token then redis.call('DEL', cancel) end
end
return 1`)

// Finish implements Source.
func (r *Redis) Finish(ctx context.Context, m Message, result []byte, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	keys := []string{r.leases, r.claims, cmp.Or(m.Results, r.other), r.dead, "request-active:" + m.ID, "request-cancel:" + m.ID}
	err := owned(finishScript.Run(ctx, r.client, keys, m.Key, r.owner, result, m.Token, reason, mostDead))
	if err != nil && !errors.Is(err, ErrLost) {
		return fmt.Errorf("storing a result of %s: %w", r.pending, err)
	}
	return err
}

// owned reads the answer of a script: 1, or 0 if another consumer owns the message.
func owned(c *redis.Cmd) error {
	done, err := c.Int()
	if err == nil && done == 0 {
		return ErrLost
	}
	return err
}

var releaseScript = redis.NewScript(`
local pending, leases, claims = KEYS[1], KEYS[2], KEYS[3]
local key, owner, score = ARGV[1], ARGV[2], ARGV[3]
local c = redis.call('HMGET', claims, key .. ':o', key .. ':m')
if c[1] ~= owner then return 0 end
redis.call('ZADD', pending, score, c[2])
redis.call('ZREM', leases, key)
redis.call('HDEL', claims, key .. ':m', key .. ':o', key .. ':s', key .. ':n')
return 1`)

// Release implements Source. The score becomes the deadline, which it is, unless the producer has another idea.
func (r *Redis) Release(ctx context.Context, m Message) error {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	err := owned(releaseScript.Run(ctx, r.client, []string{r.pending, r.leases, r.claims}, m.Key, r.owner, m.Deadline.Unix()))
	if err != nil && !errors.Is(err, ErrLost) {
		return fmt.Errorf("releasing a message of %s: %w", r.pending, err)
	}
	return err
}

// Waiting implements Source.
func (r *Redis) Waiting(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	return r.client.ZCard(ctx, r.pending).Result()
}
